"""What a partition takes of a producer."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.partition_limits import MAX_UNCOMPRESSED_BYTES, PartitionLimits
from pulsar_ray.errors import MessageTooBig, NotAllowedError
from pulsar_ray.model.enums import CompressionType
from tests.unit.client.producer.publishing_link import opened


def limits_of(max_message_size: int = 5000, **options: Any) -> PartitionLimits:
    return PartitionLimits(ProducerOptions(topic="t", **options), opened(max_message_size=max_message_size))


def test_nothing_is_cut_unless_chunking_was_asked_for() -> None:
    assert limits_of().chunk_bytes == 0
    assert not limits_of().is_chunked(b"x" * 10_000)
    assert not limits_of().goes_alone(b"x" * 10_000)
    assert PartitionLimits(ProducerOptions(topic="t", chunking_enabled=True)).chunk_bytes == 0


@pytest.mark.parametrize(("wanted", "chunk_bytes"), [(-1, 5000), (2000, 2000), (9000, 5000)])
def test_chunks_are_as_large_as_wanted_and_no_larger_than_the_partition_takes(
    wanted: int, chunk_bytes: int
) -> None:
    limits = limits_of(chunking_enabled=True, chunk_max_message_size=wanted)
    assert limits.chunk_bytes == chunk_bytes
    assert not limits.is_chunked(b"x" * chunk_bytes)
    assert limits.is_chunked(b"x" * (chunk_bytes + 1))
    assert not limits.is_chunked(None)
    assert limits.cut(b"x" * chunk_bytes, None) is None
    message = limits.cut(b"x" * (chunk_bytes + 1), None)
    assert message is not None
    assert message.chunk_count == 2


def test_a_message_that_compression_makes_small_enough_is_not_cut() -> None:
    limits = limits_of(chunking_enabled=True, compression_type=CompressionType.LZ4)
    assert limits.is_chunked(b"x" * 100_000)
    assert limits.cut(b"x" * 100_000, None) is None


def test_sizes_are_checked_as_they_are_stored() -> None:
    limits_of().check_size(5000)
    with pytest.raises(MessageTooBig):
        limits_of().check_size(5001)
    compressed = limits_of(compression_type=CompressionType.LZ4)
    compressed.check_size(5001)
    with pytest.raises(MessageTooBig, match="uncompressed"):
        compressed.check_size(MAX_UNCOMPRESSED_BYTES + 1)


def test_policies_change_them() -> None:
    limits = limits_of().changed(2000, 60_000)
    assert (limits.max_message_size, limits.max_delivery_delay_ms) == (2000, 60_000)
    limits.check_delay(70_000, 10_000)
    with pytest.raises(NotAllowedError):
        limits.check_delay(70_001, 10_000)
    limits_of().check_delay(1 << 60, 0)
    before = PartitionLimits(ProducerOptions(topic="t"))
    assert before.changed(2000, 1) is before
