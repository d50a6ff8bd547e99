"""Decrypts payloads in consumers and readers (ADR 0156)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from pulsar_ray.client.options.crypto_key_reader import CryptoKeyReader, shown
from pulsar_ray.errors import CryptoError, InvalidConfiguration, OperationNotSupported
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.metadata import EncryptionInfo
from pulsar_ray.security.keys import asymmetric_key, cryptography

MOST_DATA_KEYS = 256
"""So many are kept in memory: each producer has one for some hours."""


class PayloadDecrypter:
    """Decrypts what producers encrypted for the key that a reader has. Thread-safe.

    The private key is read when the first encrypted message comes, and again after it could not be.
    """

    def __init__(self, reader: CryptoKeyReader | None) -> None:
        self._reader = reader
        self._private_key: Any = None
        self._lock = threading.Lock()
        self._data_keys: OrderedDict[bytes, Any] = OrderedDict()

    def __call__(self, info: EncryptionInfo, payload: Buffer) -> bytes:
        """Return the payload. Raises CryptoError without the library or a fitting key."""
        if self._reader is None:
            raise CryptoError(
                f"the message is encrypted for the key {info.key_names()}: give crypto_key_reader, with the "
                "private key"
            )
        if info.algorithm:
            raise CryptoError(
                f"the message is encrypted by {info.algorithm!r}, which this build does not know"
            )
        private_key = self._private()
        for _, wrapped, _ in info.keys:
            cipher = self._data_key(private_key, wrapped)
            if cipher is None:
                continue
            try:
                decrypted: bytes = cipher.decrypt(info.parameter, payload, None)
            except Exception as error:  # of the library: the tag does not fit, or the nonce is none
                raise CryptoError("the encrypted payload was changed: its tag does not fit") from error
            return decrypted
        raise CryptoError(
            f"the message is encrypted for the key {info.key_names()}, and the private key "
            f"{shown(self._reader.private_key_path)} is not the one of it"
        )

    def _private(self) -> Any:
        if self._private_key is None:
            assert self._reader is not None
            try:
                self._private_key = asymmetric_key(
                    self._reader.private_key_path, "RS256", "the private key for messages", is_private=True
                )
            except (InvalidConfiguration, OperationNotSupported) as error:
                raise CryptoError(error.text) from error
        return self._private_key

    def _data_key(self, private_key: Any, wrapped: bytes) -> Any:
        """Return the cipher of a data key; None if it was wrapped for another key."""
        with self._lock:
            if (cipher := self._data_keys.get(wrapped)) is not None:
                self._data_keys.move_to_end(wrapped)
                return cipher
        try:
            cipher = cryptography().gcm(private_key.decrypt(wrapped, cryptography().key_wrapping))
        except ValueError:
            return None
        with self._lock:
            self._data_keys[wrapped] = cipher
            if len(self._data_keys) > MOST_DATA_KEYS:
                self._data_keys.popitem(last=False)
        return cipher
