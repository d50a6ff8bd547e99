"""Lists what the official client can do and this release cannot yet.

Option classes and a test read this one table.

A refused argument raises OperationNotSupported naming the parameter, its value and what to do instead.
Nothing that would change what a program means is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pulsar_ray.client.options.authentication import (
    AuthenticationAthenz,
)
from pulsar_ray.client.options.service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from pulsar_ray.errors import OperationNotSupported


@dataclass(frozen=True)
class NotYet:
    """Values of one parameter that are refused for now."""

    call: str
    parameter: str
    is_refused: Callable[[Any], bool]
    examples: tuple[Any, ...]
    remedy: str

    def error(self, value: object) -> OperationNotSupported:
        return OperationNotSupported(
            f"{self.call}: {self.parameter}={value!r:.200} is not supported yet; {self.remedy}"
        )


def _is_given(value: object) -> bool:
    return value is not None


def _is_set(value: object) -> bool:
    return bool(value)


def is_choice_of_clusters(value: object) -> bool:
    """Whether it names several clusters instead of one."""
    return isinstance(value, (AutoClusterFailover, ServiceInfoProvider))


_NO_TLS: Final = "leave it out; connections stay on Unix sockets or the cluster's own network"


def _refused(call: str, parameter: str, examples: tuple[Any, ...], remedy: str) -> NotYet:
    return NotYet(call, parameter, _is_given, examples, remedy)


NOT_YET: Final[tuple[NotYet, ...]] = (
    NotYet(
        "Client",
        "service_url",
        is_choice_of_clusters,
        (ServiceInfoProvider(), AutoClusterFailover(ServiceInfo("h:1"), [ServiceInfo("h:2")])),
        'give "auto", "local" or the host:port of one Ray cluster',
    ),
    NotYet(
        "Client",
        "authentication",
        lambda value: value is not None and value.auth[0] not in ("token", "basic", "oauth2", "tls"),
        (AuthenticationAthenz("{}"),),
        "give AuthenticationToken, with a function if tokens come from elsewhere, TLS, Basic or Oauth2",
    ),
    NotYet("Client", "use_tls", _is_set, (True,), _NO_TLS),
    _refused("Client", "tls_trust_certs_file_path", ("ca.pem",), _NO_TLS),
    NotYet("Client", "tls_allow_insecure_connection", _is_set, (True,), _NO_TLS),
    NotYet("Client", "tls_validate_hostname", _is_set, (True,), _NO_TLS),
    _refused("Client", "tls_private_key_file_path", ("key.pem",), _NO_TLS),
    _refused("Client", "tls_certificate_file_path", ("cert.pem",), _NO_TLS),
    _refused("Client", "listener_name", ("external",), "leave it out; brokers are addressed through Ray"),
)
"""In the order of the official parameters; `examples` are values the test tries."""


def refuse_not_yet(call: str, arguments: Mapping[str, Any]) -> None:
    """Raises OperationNotSupported for the first argument of this call that the table refuses."""
    for row in NOT_YET:
        if row.call == call and row.is_refused(arguments[row.parameter]):
            raise row.error(arguments[row.parameter])
