"""Says how a received message was encrypted, with the names of the official client."""

from __future__ import annotations

from typing import NamedTuple

from pulsar_ray.format.block import BlockHeader
from pulsar_ray.format.metadata import EncryptionInfo
from pulsar_ray.model.enums import CompressionType


class EncryptionKey(NamedTuple):
    """A key that a message was encrypted for.

    `key` is its name, and `value` the data key, encrypted with it.
    """

    key: str
    value: bytes
    metadata: dict[str, str]


class EncryptionContext:
    """Has what it takes to decrypt a message elsewhere."""

    def __init__(self, info: EncryptionInfo, header: BlockHeader, *, is_decrypted: bool) -> None:
        self._info = info
        self._codec = header.codec
        self._uncompressed_size = header.uncompressed_length
        self._batch_size = header.batch_size or -1
        self._is_decrypted = is_decrypted

    def keys(self) -> list[EncryptionKey]:
        """The keys that it was encrypted for."""
        return [EncryptionKey(*key) for key in self._info.keys]

    def param(self) -> bytes:
        """The nonce of AES-GCM."""
        return self._info.parameter

    def algorithm(self) -> str:
        """Empty, as Pulsar's clients leave it: AES-GCM with a data key of 256 bits."""
        return self._info.algorithm

    def compression_type(self) -> CompressionType:
        """The compression of the payload, done before it was encrypted."""
        return CompressionType(self._codec)

    def uncompressed_message_size(self) -> int:
        """Bytes of the payload, decrypted and uncompressed; of a batch the whole one's."""
        return self._uncompressed_size

    def batch_size(self) -> int:
        """Messages of the batch; -1 for a message without one."""
        return self._batch_size

    def is_decryption_failed(self) -> bool:
        """Whether `data()` is the encrypted payload, of the whole batch where there is one."""
        return not self._is_decrypted
