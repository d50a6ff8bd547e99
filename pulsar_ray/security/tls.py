"""TLS of a server, by a certificate that may change, and those of clients."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from typing import Any

from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration

logger = logging.getLogger(__name__)

OLDEST = ssl.TLSVersion.TLSv1_2


class ServerTls:
    """Shows each new connection of a server the certificate of the moment.

    Raises InvalidConfiguration for files that cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen = self._state()
        self.context = self._made()
        self._current = self.context
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        state = self._state()
        if state != self._seen:
            try:
                self._current = self._made()
            except InvalidConfiguration as error:
                # Half exchanged, perhaps: the former one until certificate and key fit.
                logger.warning("the former certificate is shown, for %s", error.text)
                return
            finally:
                connection.context = self._current
            self._seen = state
        connection.context = self._current

    def _state(self) -> tuple[tuple[int, int], ...]:
        given = self._settings
        return tuple(map(_changed, (given.tls_certificate_file_path, given.tls_key_file_path)))

    def _made(self) -> ssl.SSLContext:
        given = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = OLDEST
        try:
            context.load_cert_chain(given.tls_certificate_file_path, given.tls_key_file_path)
        except OSError as error:
            raise InvalidConfiguration(
                f"tls_certificate_file_path {given.tls_certificate_file_path!r} with tls_key_file_path "
                f"{given.tls_key_file_path!r} cannot be used: {error.strerror or error}"
            ) from None
        if given.tls_trust_certs_file_path:
            _trust(context, given)
        return context


def _trust(context: ssl.SSLContext, given: Settings) -> None:
    required = given.tls_require_trusted_client_cert_on_connect
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(given.tls_trust_certs_file_path)
    except OSError as error:
        raise InvalidConfiguration(
            f"tls_trust_certs_file_path {given.tls_trust_certs_file_path!r} cannot be used: "
            f"{error.strerror or error}"
        ) from None


def _changed(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)


def common_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the common name of a certificate that was verified; empty without one."""
    for parts in (certificate or {}).get("subject", ()):
        for name, value in parts:
            if name == "commonName":
                return str(value)
    return ""
