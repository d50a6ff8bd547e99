"""Encrypts the payloads of a producer (ADR 0156).

As Pulsar's clients do: AES-GCM with a data key of 256 bits, which goes along encrypted by RSA (OAEP, SHA-1)
with the public key.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.errors import CryptoError, InvalidConfiguration
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.metadata import EncryptionInfo
from pulsar_ray.security.keys import asymmetric_key, cryptography

DATA_KEY_BITS = 256
NONCE_BYTES = 12
RENEWAL_S = 4 * 3600.0
"""A data key is used for so long.

Nonces are random: in this time fewer blocks are encrypted than make it likely that one comes twice.
"""


class PayloadCipher:
    """Encrypts one payload after the other for whoever has the private key. Thread-safe.

    Raises CryptoError, when it is made, for a public key that cannot be used.
    """

    def __init__(
        self, key_name: str, public_key_path: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._key_name = key_name
        try:
            self._public_key = asymmetric_key(
                public_key_path, "RS256", f"the public key {key_name!r}", is_private=False
            )
        except InvalidConfiguration as error:
            raise CryptoError(error.text) from error
        self._padding = cryptography().key_wrapping
        self._monotonic_s = monotonic_s
        self._data_key: tuple[Any, EncryptionInfo, float] = self._new_data_key()

    @classmethod
    def of(cls, options: ProducerOptions) -> PayloadCipher | None:
        """Make the cipher of a producer; None if it does not encrypt."""
        if options.encryption_key is None or options.crypto_key_reader is None:
            return None  # options are given together
        return cls(options.encryption_key, options.crypto_key_reader.public_key_path)

    def _new_data_key(self) -> tuple[Any, EncryptionInfo, float]:
        data_key = os.urandom(DATA_KEY_BITS // 8)
        wrapped = self._public_key.encrypt(data_key, self._padding)
        info = EncryptionInfo("", b"", ((self._key_name, wrapped, {}),))
        return cryptography().gcm(data_key), info, self._monotonic_s() + RENEWAL_S

    def __call__(self, payload: Buffer) -> tuple[EncryptionInfo, bytes]:
        """Return how it was encrypted, and the encrypted payload."""
        cipher, info, until_s = self._data_key
        if self._monotonic_s() >= until_s:
            cipher, info, _ = self._data_key = self._new_data_key()
        nonce = os.urandom(NONCE_BYTES)
        return info._replace(parameter=nonce), cipher.encrypt(nonce, payload, None)
