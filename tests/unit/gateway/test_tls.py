"""HTTPS: the certificate of the moment, and clients who show their own."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.serving.logs.line_limits import AUDIT
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.gateway import application, connections
from pulsar_ray.security.tls import ServerTls
from pulsar_ray.testing.waiting import wait_until
from tests.certificates import Signer
from tests.unit.gateway.conftest import serving

# Python 3.10 warns of connections whose other side went away in the middle.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")


def get(url: str, ca: Path, certificate: tuple[str, str] | None = None) -> tuple[int, str]:
    """Return the status of a request, and the name that the server showed."""
    context = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    host = url.removeprefix("https://").replace("127.0.0.1", "localhost")
    connection = http.client.HTTPSConnection(host, context=context, timeout=30)
    try:
        connection.request("GET", "/admin/v2/tenants")
        shown: Any = connection.sock.getpeercert()
        status = connection.getresponse().status
        return status, dict(part[0] for part in shown["subject"])["commonName"]
    finally:
        connection.close()


def test_new_connections_are_shown_the_certificate_of_the_moment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signer = Signer(tmp_path)
    certificate, key = signer.give("first", "server")
    with serving(tmp_path / "broker", tls_certificate_file_path=certificate, tls_key_file_path=key) as server:
        assert server.url.startswith("https://")
        assert get(server.url, signer.file) == (200, "first")
        signer.give("second", "server")
        assert get(server.url, signer.file) == (200, "second")
        Path(key).write_text("half written")
        assert get(server.url, signer.file) == (200, "second")
        assert f"tls_key_file_path '{key}' cannot be used" in caplog.text
        signer.give("third", "server")
        assert get(server.url, signer.file) == (200, "third")


def test_who_never_ends_the_handshake_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "Connections", lambda: connections.Connections(head_s=0.2))
    certificate, key = Signer(tmp_path).give("server", "server")
    with serving(tmp_path / "broker", tls_certificate_file_path=certificate, tls_key_file_path=key) as server:
        host, port = server.url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as idle:
            assert idle.recv(1) == b""


def test_handshakes_count_among_the_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "Connections", lambda: connections.Connections(most=2, head_s=60))
    signer = Signer(tmp_path)
    certificate, key = signer.give("server", "server")
    with serving(tmp_path / "broker", tls_certificate_file_path=certificate, tls_key_file_path=key) as server:
        host, port = server.url.removeprefix("https://").split(":")

        def silent() -> socket.socket:
            return socket.create_connection((host, int(port)), timeout=30)

        with silent(), silent(), silent() as third:
            assert third.recv(1) == b""

        def is_served() -> bool:
            try:
                return get(server.url, signer.file)[0] == 200
            except (ssl.SSLError, ConnectionError):
                return False

        wait_until(is_served, what="room for another one")


def test_the_common_name_of_a_client_is_its_role(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT)
    signer, stranger = Signer(tmp_path), Signer(tmp_path, "stranger")
    certificate, key = signer.give("server", "server")
    with serving(
        tmp_path / "broker",
        tls_certificate_file_path=certificate,
        tls_key_file_path=key,
        tls_trust_certs_file_path=str(signer.file),
        authentication_enabled=True,
        authorization_enabled=True,
        super_user_roles="root",
    ) as server:
        assert get(server.url, signer.file, signer.give("root", "root"))[0] == 200
        assert get(server.url, signer.file, signer.give("shop", "shop"))[0] == 403
        assert get(server.url, signer.file)[0] == 401
        for wrong in (stranger.give("root", "forged"), signer.give("root", "old", days=-1)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                get(server.url, signer.file, wrong)
        assert get(server.url, signer.file)[0] == 401
        for reason in ("unable to get local issuer certificate", "certificate has expired"):
            assert f"'' at 127.0.0.1: TLS handshake refused: {reason}" in caplog.text


def test_a_client_without_a_certificate_is_noted_where_one_is_required(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, AUDIT)
    signer = Signer(tmp_path)
    certificate, key = signer.give("server", "server")
    with serving(
        tmp_path / "broker",
        tls_certificate_file_path=certificate,
        tls_key_file_path=key,
        tls_trust_certs_file_path=str(signer.file),
        tls_require_trusted_client_cert_on_connect=True,
    ) as server:
        assert get(server.url, signer.file, signer.give("shop", "shop"))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(server.url, signer.file)
        wait_until(lambda: "TLS handshake refused: no certificate" in caplog.text, 30)


def test_files_and_settings_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    certificate, key = Signer(tmp_path).give("server", "server")
    for given, words in (
        ({"tls_certificate_file_path": certificate}, "or neither"),
        ({"tls_trust_certs_file_path": certificate, "http_listen": "0"}, "needs tls_certificate_file_path"),
        ({"tls_require_trusted_client_cert_on_connect": True}, "needs tls_trust_certs_file_path"),
    ):
        with pytest.raises(InvalidConfiguration, match=words):
            Settings(**given)
    for wrong in ("/nowhere", certificate):
        with pytest.raises(InvalidConfiguration, match="cannot be used"):
            ServerTls(Settings(tls_certificate_file_path=certificate, tls_key_file_path=wrong))
    with pytest.raises(InvalidConfiguration, match="tls_trust_certs_file_path"):
        ServerTls(
            Settings(
                tls_certificate_file_path=certificate,
                tls_key_file_path=key,
                tls_trust_certs_file_path="/nowhere",
            )
        )
