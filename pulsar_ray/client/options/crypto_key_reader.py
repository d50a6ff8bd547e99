"""Holds the official way to give keys.

A reader can be built, but nothing is encrypted yet (see `not_yet`).
"""

from __future__ import annotations

from pulsar_ray.client.options.checks import check_text


class CryptoKeyReader:
    """A public and a private key in files."""

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        check_text("public_key_path", public_key_path)
        check_text("private_key_path", private_key_path)
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path
