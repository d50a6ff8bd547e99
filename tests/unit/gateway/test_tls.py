"""HTTPS: the certificate of the moment, and clients who show their own."""

from __future__ import annotations

import datetime
import http.client
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.security.tls import ServerTls
from tests.unit.gateway.conftest import serving


class Signer:
    """A certificate authority that writes what it signs to files."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._signed(self._name, self._key, 1, is_ca=True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def _signed(self, name: x509.Name, key: Any, days: int, *, is_ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        addresses = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=9))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(addresses, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def give(self, name: str, file: str, days: int = 1) -> tuple[str, str]:
        """Return the files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._signed(subject, key, days, is_ca=False)
        paths = self.directory / f"{file}.crt", self.directory / f"{file}.key"
        paths[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        paths[1].write_bytes(key.private_bytes(*form))
        return str(paths[0]), str(paths[1])


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


def test_new_connections_are_shown_the_certificate_of_the_moment(tmp_path: Path) -> None:
    signer = Signer(tmp_path)
    certificate, key = signer.give("first", "server")
    with serving(tmp_path / "broker", tls_certificate_file_path=certificate, tls_key_file_path=key) as server:
        assert server.url.startswith("https://")
        assert get(server.url, signer.file) == (200, "first")
        signer.give("second", "server")
        assert get(server.url, signer.file) == (200, "second")
        Path(key).write_text("half written")
        assert get(server.url, signer.file) == (200, "second")
        signer.give("third", "server")
        assert get(server.url, signer.file) == (200, "third")


def test_the_common_name_of_a_client_is_its_role(tmp_path: Path) -> None:
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


def test_files_and_settings_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    certificate, key = Signer(tmp_path).give("server", "server")
    for given, words in (
        ({"tls_certificate_file_path": certificate}, "or neither"),
        ({"tls_trust_certs_file_path": certificate}, "needs tls_certificate_file_path"),
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
