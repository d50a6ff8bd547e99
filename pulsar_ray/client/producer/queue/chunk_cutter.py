"""Decides which messages of a producer are cut into chunks, and cuts them (ADR 0038)."""

from __future__ import annotations

from typing import Any

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.batch_builder import METADATA_ALLOWANCE
from pulsar_ray.client.producer.blocks.chunked_message import ChunkedMessage


class ChunkCutter:
    """Cuts messages above the size that its partition and the options allow for one block."""

    __slots__ = ("_codec", "_is_enabled", "_wanted_bytes", "chunk_bytes")

    def __init__(self, options: ProducerOptions) -> None:
        self._is_enabled = options.chunking_enabled
        self._wanted_bytes = options.chunk_max_message_size
        self._codec = int(options.compression_type)
        self.chunk_bytes = 0
        """The size from which on a message is cut; 0 if none is."""

    def set_max_message_size(self, max_message_size: int) -> None:
        """Make no larger chunks from now on."""
        if self._is_enabled:
            wanted = self._wanted_bytes
            self.chunk_bytes = min(wanted if wanted > 0 else max_message_size, max_message_size)

    def is_chunked(self, value: bytes | None) -> bool:
        """Whether a message is cut into chunks, unless compression makes it small enough."""
        return bool(self.chunk_bytes) and value is not None and len(value) > self.chunk_bytes

    def cut(self, value: bytes | None, fields: tuple[Any, ...] | int | None) -> ChunkedMessage | None:
        """Cut a message; None if it is small enough, perhaps once compressed.

        `fields` are those of `SendQueue.enqueue`. Raises what `ChunkedMessage.cut` raises.
        """
        size = self.chunk_bytes
        if value is None or len(value) <= size:
            return None
        if isinstance(fields, int):  # a delayed message that is nothing else but its value
            fields = (None, None, None, None, None, fields)
        return ChunkedMessage.cut(value, fields, self._codec, size, size + METADATA_ALLOWANCE)
