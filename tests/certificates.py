"""Certificates for tests, signed by an authority of their own."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_USES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def key_usage(**uses: bool) -> x509.KeyUsage:
    """Return the extension that allows these uses of a key and no others."""
    return x509.KeyUsage(**{**dict.fromkeys(_USES, False), **uses})


class Signer:
    """A certificate authority that writes what it signs to files."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        usage = key_usage(key_cert_sign=True, crl_sign=True)
        self._own = self._signed(self._name, self._key, 1, is_ca=True, extensions=[usage])
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(_pem(self._own))

    def _signed(
        self,
        name: x509.Name,
        key: Any,
        days: int,
        *,
        is_ca: bool,
        use: x509.ObjectIdentifier | None = None,
        extensions: Sequence[x509.ExtensionType] = (),
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        addresses = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=9))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(addresses, critical=False)
        )
        # Python 3.13 takes none without these, and no authority without its usage.
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        if is_ca:
            extensions = [*extensions, x509.SubjectKeyIdentifier.from_public_key(key.public_key())]
        if use is not None:
            extensions = [*extensions, x509.ExtendedKeyUsage([use])]
        for each in (*extensions, signer):
            builder = builder.add_extension(each, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def give(
        self,
        name: str,
        file: str,
        days: int = 1,
        *,
        key: Any = None,
        use: x509.ObjectIdentifier | None = None,
    ) -> tuple[str, str]:
        """Return the files of a certificate, for all uses or one, and its key."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        signed = self._signed(_named(name), key, days, is_ca=False, use=use)
        return self._written(file, [signed], key)

    def give_by_another(
        self,
        name: str,
        file: str,
        *,
        is_ca: bool,
        of_signer: Sequence[x509.ExtensionType] = (),
        of_client: Sequence[x509.ExtensionType] = (),
    ) -> tuple[str, str]:
        """Return the files of one that is signed with a certificate of this authority, and of its key."""
        between = Signer.__new__(Signer)
        between._key, between._name = ec.generate_private_key(ec.SECP256R1()), _named(f"{file}-between")
        certificate = self._signed(between._name, between._key, 1, is_ca=is_ca, extensions=of_signer)
        key = ec.generate_private_key(ec.SECP256R1())
        own = between._signed(_named(name), key, 1, is_ca=False, extensions=of_client)
        return self._written(file, [own, certificate], key)

    def _written(self, file: str, chain: list[x509.Certificate], key: Any) -> tuple[str, str]:
        paths = self._directory / f"{file}.crt", self._directory / f"{file}.key"
        paths[0].write_bytes(b"".join(_pem(each) for each in chain))
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        paths[1].write_bytes(key.private_bytes(*form))
        return str(paths[0]), str(paths[1])


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
