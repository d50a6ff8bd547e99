"""RSA keys that tests encrypt messages with."""

from __future__ import annotations

import base64
import functools

from pulsar_ray.client.options.crypto_key_reader import CryptoKeyReader
from pulsar_ray.security.keys import new_key_pair


@functools.cache
def key_reader(name: str) -> CryptoKeyReader:
    """Both halves of a key; another one for each name."""
    private, public = (data_url(key) for key in new_key_pair("RS256"))
    return CryptoKeyReader(public, private)


def data_url(key: bytes) -> str:
    return "data:;base64," + base64.b64encode(key).decode()
