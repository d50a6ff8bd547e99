"""Which messages are cut into chunks."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.queue.chunk_cutter import ChunkCutter
from pulsar_ray.model.enums import CompressionType


def cutter_of(max_message_size: int = 5000, **options: Any) -> ChunkCutter:
    cutter = ChunkCutter(ProducerOptions(topic="t", **options))
    cutter.set_max_message_size(max_message_size)
    return cutter


def test_nothing_is_cut_unless_chunking_was_asked_for() -> None:
    assert cutter_of().chunk_bytes == 0
    assert not cutter_of().is_chunked(b"x" * 10_000)


@pytest.mark.parametrize(("wanted", "chunk_bytes"), [(-1, 5000), (2000, 2000), (9000, 5000)])
def test_chunks_are_as_large_as_wanted_and_no_larger_than_the_partition_takes(
    wanted: int, chunk_bytes: int
) -> None:
    cutter = cutter_of(chunking_enabled=True, chunk_max_message_size=wanted)
    assert cutter.chunk_bytes == chunk_bytes
    assert not cutter.is_chunked(b"x" * chunk_bytes)
    assert cutter.is_chunked(b"x" * (chunk_bytes + 1))
    assert not cutter.is_chunked(None)
    assert cutter.cut(b"x" * chunk_bytes, None) is None
    message = cutter.cut(b"x" * (chunk_bytes + 1), None)
    assert message is not None
    assert message.chunk_count == 2


def test_a_message_that_compression_makes_small_enough_is_not_cut() -> None:
    cutter = cutter_of(chunking_enabled=True, compression_type=CompressionType.LZ4)
    assert cutter.is_chunked(b"x" * 100_000)
    assert cutter.cut(b"x" * 100_000, None) is None
