"""Declares the options of `Client`, and what a service URL may look like."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from pulsar_ray.client.options.authentication import Authentication
from pulsar_ray.client.options.checks import MAX_INT, check_optional, refuse
from pulsar_ray.client.options.declared import (
    Count,
    Flag,
    Interval,
    OptionalText,
    check_each,
    number,
    optional_instance,
)
from pulsar_ray.client.options.loggers import ConsoleLogger, FileLogger
from pulsar_ray.client.options.not_yet import is_choice_of_clusters, refuse_not_yet
from pulsar_ray.config import check_settings

Logger = logging.Logger | ConsoleLogger | FileLogger
_TRANSPORTS = ("auto", "socket", "tcp", "ray")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65_535
_AtLeastOne = Annotated[int, number(1, MAX_INT)]
_Path = Annotated[str | os.PathLike[str] | None, optional_instance((str, os.PathLike), "a path")]


def _check_transport(name: str, value: object) -> None:
    if value not in _TRANSPORTS:
        raise refuse(name, value, f"one of {', '.join(map(repr, _TRANSPORTS))}")


def _check_service(_name: str, value: object) -> None:
    if not is_choice_of_clusters(value):
        check_service_url(value)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The arguments of `Client` with their defaults.

    `from_arguments` makes and checks them.
    """

    service_url: Annotated[str, _check_service] = "auto"
    authentication: Annotated[
        Authentication | None, optional_instance(Authentication, "one of the Authentication classes")
    ] = None
    operation_timeout_seconds: _AtLeastOne = 30
    io_threads: _AtLeastOne = 1
    message_listener_threads: _AtLeastOne = 1
    concurrent_lookup_requests: Interval = 50_000
    log_conf_file_path: OptionalText = None
    stats_interval_in_seconds: Count = 600
    use_tls: Flag = False
    tls_trust_certs_file_path: OptionalText = None
    tls_allow_insecure_connection: Flag = False
    tls_validate_hostname: Flag = False
    logger: Annotated[
        Logger | None,
        optional_instance(
            (logging.Logger, ConsoleLogger, FileLogger), "a logging.Logger, ConsoleLogger, FileLogger"
        ),
    ] = None
    connection_timeout_ms: _AtLeastOne = 10_000
    listener_name: OptionalText = None
    tls_private_key_file_path: OptionalText = None
    tls_certificate_file_path: OptionalText = None
    data_dir: _Path = None
    config_file: _Path = None
    transport: Annotated[str, _check_transport] = "auto"
    metrics: Flag = False
    settings: dict[str, Any] = field(default_factory=dict)
    """Broker settings given as further keywords; `config.Settings` knows their names."""

    @classmethod
    def from_arguments(cls, *, settings: dict[str, Any] | None = None, **arguments: Any) -> ClientOptions:
        """Check the arguments of a call of `Client`; `settings` are its further keywords.

        Raises ValueError for a wrong type or value, InvalidConfiguration for a setting that there is not or
        that has a bad value, OperationNotSupported for what is not there yet.
        """
        options = cls(**arguments, settings=dict(settings or {}))
        check_each(options)
        check_settings(options.settings)
        refuse_not_yet("Client", vars(options))
        return options

    def for_another_process(self) -> dict[str, Any]:
        """The arguments of a client that connects to the same cluster elsewhere.

        They follow the address.
        """
        return {
            "operation_timeout_seconds": self.operation_timeout_seconds,
            "data_dir": self.data_dir,
            "config_file": self.config_file,
            "transport": self.transport,
            "metrics": self.metrics,
            **self.settings,
        }


def check_paths(data_dir: object, config_file: object) -> None:
    """Raise ValueError unless each is a path or None."""
    for name, path in (("data_dir", data_dir), ("config_file", config_file)):
        check_optional(name, path, (str, os.PathLike), "a path")


def check_service_url(url: object) -> None:
    """Refuse a URL unless it is "auto", "local" or the host:port of a Ray cluster.

    Raises ValueError.
    """
    if not isinstance(url, str):
        raise refuse("service_url", url, '"auto", "local" or a Ray address "host:port"')
    if url in ("auto", "local"):
        return
    if url.startswith("ray://"):
        raise ValueError(
            f"service_url={url!r}: Ray's remote client cannot carry lanes; run the program on a node "
            'of the cluster with service_url="auto", or submit it with `ray job submit`'
        )
    if "://" in url:
        raise ValueError(
            f'service_url={url!r}: there is no broker at a URL here; use "auto", "local" or the '
            "'host:port' of a Ray cluster's head"
        )
    address = _ADDRESS.fullmatch(url)
    if address is None or not 0 < int(address["port"]) <= _HIGHEST_PORT:
        raise refuse("service_url", url, '"auto", "local" or a Ray address "host:port"')
