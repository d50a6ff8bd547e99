"""Keys of tokens: where a setting says that they are, and new ones."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import urllib.parse
from typing import Any

from pulsar_ray.errors import InvalidConfiguration, OperationNotSupported

SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""How long the secret of each algorithm is, at the least."""
RSA_BITS = 2048
KEY_KINDS = {"RS": "an RSA key", "ES": "an elliptic curve's key"}
CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
ALGORITHMS = (*SECRET_BYTES, "RS256", "RS384", "RS512", *CURVES)
MISSING = "tokens and encryption need PyJWT and cryptography: pip install 'pulsar-ray[security]'"
_LARGEST_BYTES = 64 << 10


def read_source(source: str, what: str) -> bytes:
    """Return what a path, a `file://` or a `data:` URL holds.

    Raises InvalidConfiguration, which names the place, never the content.
    """
    if is_data_url(source):
        return _of_data_url(source, what)
    path = path_of(source, what)
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no path"
        raise InvalidConfiguration(
            f"{what}: {path!r:.200} cannot be read ({reason}); give a path, file:// or data:"
        ) from None
    if not content or len(content) > _LARGEST_BYTES:
        raise InvalidConfiguration(f"{what}: {path!r:.200} is empty, or has more than {_LARGEST_BYTES} bytes")
    return content


def is_data_url(source: str) -> bool:
    """Return whether a source is a key itself, which is not to be shown."""
    return source[:5].lower() == "data:"


def path_of(source: str, what: str) -> str:
    """Return the path of a source that is no `data:` URL. Raises InvalidConfiguration."""
    if not source.startswith("file:"):
        return os.path.expanduser(source)
    parts = urllib.parse.urlsplit(source)
    if parts.netloc not in ("", "localhost"):
        raise InvalidConfiguration(f"{what}: {source!r:.200} names another host: give file:///path")
    return urllib.parse.unquote(parts.path)


def _of_data_url(source: str, what: str) -> bytes:
    kind, comma, text = source.partition(",")
    try:
        if not comma:
            raise ValueError
        if kind.endswith(";base64"):
            content = base64.b64decode(re.sub(r"\s", "", text), validate=True)
        else:
            content = urllib.parse.unquote_to_bytes(text)
        if not content:
            raise ValueError
    except (ValueError, binascii.Error):
        raise InvalidConfiguration(f"{what}: it is no data: URL; give data:;base64, and the key") from None
    return content


def check_algorithm(name: str) -> None:
    """Raise InvalidConfiguration for an algorithm that tokens are not signed with, such as `none`."""
    if name not in ALGORITHMS:
        raise InvalidConfiguration(f"{name!r:.50} is no algorithm for tokens: give {', '.join(ALGORITHMS)}")


def new_secret(algorithm: str) -> bytes:
    """Return a new secret of the length of the algorithm's hash."""
    if algorithm not in SECRET_BYTES:
        raise InvalidConfiguration(
            f"{algorithm!r:.50} signs with no secret: give {', '.join(SECRET_BYTES)}, or make a key pair"
        )
    return secrets.token_bytes(SECRET_BYTES[algorithm])


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Return a new private and public key, in DER (PKCS 8 and X.509).

    Raises OperationNotSupported where the library is missing.
    """
    check_algorithm(algorithm)
    if algorithm in SECRET_BYTES:
        raise InvalidConfiguration(f"{algorithm} signs with a secret key: give RS256 or ES256, for instance")
    keys = cryptography()
    if algorithm in CURVES:
        curve = {"ES256": keys.ec.SECP256R1, "ES384": keys.ec.SECP384R1, "ES512": keys.ec.SECP521R1}
        private: Any = keys.ec.generate_private_key(curve[algorithm]())
    else:
        private = keys.rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    forms = keys.serialization
    return (
        private.private_bytes(forms.Encoding.DER, forms.PrivateFormat.PKCS8, forms.NoEncryption()),
        private.public_key().public_bytes(forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo),
    )


def secret_key(source: str, what: str) -> bytes:
    """Return a secret, the bytes of its file as they are.

    Raises InvalidConfiguration for one that is too short to be safe.
    """
    key = read_source(source, what)
    if len(key) < SECRET_BYTES["HS256"]:
        raise InvalidConfiguration(
            f"{what}: a secret of {len(key)} bytes can be guessed; "
            "`pulsar-ray tokens create-secret-key` makes one of 32"
        )
    return key


def asymmetric_key(source: str, algorithm: str, what: str, *, is_private: bool) -> Any:
    """Return the RSA or elliptic key of a file in DER or PEM.

    Raises InvalidConfiguration for what is no such key, or one of another kind than the algorithm's.
    """
    check_algorithm(algorithm)
    if algorithm in SECRET_BYTES:
        raise InvalidConfiguration(f"{what}: {algorithm} has a secret key: give RS256 or ES256, for instance")
    content = read_source(source, what)
    keys = cryptography()
    form = "pem" if content.lstrip().startswith(b"-----") else "der"
    load = getattr(keys.serialization, f"load_{form}_{'private' if is_private else 'public'}_key")
    try:
        key = load(content, None) if is_private else load(content)
    except Exception as error:  # of the library or of OpenSSL: many kinds
        side = "private" if is_private else "public"
        raise InvalidConfiguration(f"{what}: it is no {side} key in DER or PEM") from error
    rsa, elliptic = (
        (keys.rsa.RSAPrivateKey, keys.ec.EllipticCurvePrivateKey)
        if is_private
        else (keys.rsa.RSAPublicKey, keys.ec.EllipticCurvePublicKey)
    )
    fits = isinstance(key, rsa)
    if algorithm in CURVES:
        fits = isinstance(key, elliptic) and key.curve.name == CURVES[algorithm]
    if not fits:
        raise InvalidConfiguration(f"{what}: {algorithm} needs {KEY_KINDS[algorithm[:2]]} of its own kind")
    if isinstance(key, rsa) and key.key_size < RSA_BITS:
        raise InvalidConfiguration(
            f"{what}: an RSA key of {key.key_size} bits can be broken: take {RSA_BITS}"
        )
    return key


class _Cryptography:
    """The parts of the library that keys need."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        self.serialization = serialization
        self.ec = ec
        self.rsa = rsa
        self.gcm = AESGCM
        sha1 = hashes.SHA1()  # of OAEP, where it is safe: as Pulsar's clients do
        self.key_wrapping = padding.OAEP(padding.MGF1(sha1), sha1, None)
        """How a data key is encrypted with an RSA key."""


def cryptography() -> _Cryptography:
    """Return the library. Raises OperationNotSupported where it is missing."""
    try:
        return _Cryptography()
    except ImportError:
        raise OperationNotSupported(MISSING) from None
