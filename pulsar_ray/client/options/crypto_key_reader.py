"""Holds the official way to give the keys that messages are encrypted with."""

from __future__ import annotations

from typing import Annotated

from pulsar_ray.client.options.checks import check_text
from pulsar_ray.client.options.declared import optional_instance


class CryptoKeyReader:
    """Names an RSA key's public half, for producers, and its private one, for consumers.

    Each is a path, `file://` or `data:` URL of a key in PEM or DER; "" where that side is not needed. Files
    are read where the producer or consumer is: it may be on another node than the program that made this.
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        check_text("public_key_path", public_key_path)
        check_text("private_key_path", private_key_path)
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path

    def __repr__(self) -> str:
        return f"CryptoKeyReader({shown(self.public_key_path)}, {shown(self.private_key_path)})"


def shown(source: str) -> str:
    """Return where a key is, for errors and logs; a key itself is not shown."""
    return "'data:...'" if source.startswith("data:") else f"{source!r:.200}"


KeyReader = Annotated[CryptoKeyReader | None, optional_instance(CryptoKeyReader, "a CryptoKeyReader")]
