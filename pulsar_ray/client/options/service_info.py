"""Says where a client is connected, in the official client's words.

Clusters to choose from are not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsar_ray.client.options.authentication import Authentication
from pulsar_ray.client.options.checks import (
    check_number,
    check_optional,
    check_optional_text,
    check_text,
    check_type,
    refuse,
)


class ServiceInfo:
    """A service URL and how to connect there; read-only."""

    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        tls_trust_certs_file_path: str | None = None,
    ) -> None:
        check_text("service_url", service_url)
        check_optional("authentication", authentication, Authentication, "one of the Authentication classes")
        check_optional_text("tls_trust_certs_file_path", tls_trust_certs_file_path)
        self._service_url = service_url
        self._authentication = authentication
        self._tls_trust_certs_file_path = tls_trust_certs_file_path

    @property
    def service_url(self) -> str:
        """As `Client` takes it."""
        return self._service_url

    @property
    def use_tls(self) -> bool:
        """False: connections stay on Unix sockets or the cluster's own network."""
        return False

    @property
    def tls_trust_certs_file_path(self) -> str | None:
        """As it was given."""
        return self._tls_trust_certs_file_path

    @classmethod
    def wrap(cls, service_info: ServiceInfo) -> ServiceInfo:
        """The same again."""
        return service_info


class ServiceInfoProvider:
    """Base of what chooses among clusters. `Client` raises OperationNotSupported for one."""

    def initial_service_info(self) -> ServiceInfo:
        """Where to connect first."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Begin to look, and call back when it changes."""
        raise NotImplementedError

    def close(self) -> None:
        """The client has ended."""


class AutoClusterFailover:
    """A cluster and others that take its place. `Client` raises OperationNotSupported for one."""

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: Sequence[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        check_type("primary", primary, ServiceInfo, "a ServiceInfo")
        if not isinstance(secondary, list) or not secondary:
            raise refuse("secondary", secondary, "a list of at least one ServiceInfo")
        for one in secondary:
            check_type("secondary", one, ServiceInfo, "a list of ServiceInfo")
        check_number("check_interval_ms", check_interval_ms, 1)
        check_number("failover_threshold", failover_threshold, 1)
        check_number("switch_back_threshold", switch_back_threshold, 1)
        self.primary = primary
        self.secondary = secondary
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold
