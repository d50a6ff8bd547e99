"""Holds the official way to give the keys that messages are encrypted with."""

from __future__ import annotations

from typing import Annotated, Any

from pulsar_ray.client.options.checks import check_text
from pulsar_ray.security.keys import is_data_url


class CryptoKeyReader:
    """Names an RSA key's public half, for producers, and its private one, for consumers.

    Each is a path, `file://` or `data:` URL of a key in PEM or DER; "" where that side is not needed. Files
    are read where the producer or consumer is: it may be on another node than the program that made this.
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        _check_source("public_key_path", public_key_path)
        _check_source("private_key_path", private_key_path)
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path

    def __repr__(self) -> str:
        return f"CryptoKeyReader({shown(self.public_key_path)}, {shown(self.private_key_path)})"


def shown(source: str) -> str:
    """Return where a key is, for errors and logs; a key itself is not shown."""
    return "'data:...'" if is_data_url(source) else f"{source!r:.200}"


def _check_source(name: str, value: Any) -> None:
    """Refuse what is no place of a key, without showing what is given."""
    if not isinstance(value, str):
        raise ValueError(
            f"Argument {name} must be a str, a path, file:// or data: URL, not {type(value).__name__}"
        )
    if "-----BEGIN" in value and not is_data_url(value):
        raise ValueError(
            f"Argument {name} must be a path, file:// or data: URL, and is a key: put 'data:,' before it"
        )
    check_text(name, value)


def _check_reader(name: str, value: Any) -> None:
    """Refuse what is no reader, without showing it: it may be a key."""
    if value is not None and not isinstance(value, CryptoKeyReader):
        raise ValueError(f"Argument {name} must be a CryptoKeyReader or None, not {type(value).__name__}")


KeyReader = Annotated[CryptoKeyReader | None, _check_reader]
