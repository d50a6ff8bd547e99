from __future__ import annotations

import pytest

from pulsar_ray.client.producer.batch import Batch
from pulsar_ray.client.producer.batch_builder import BatchBuilder, BatchLimits
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.model.enums import CompressionType
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.client.blocks import decoded


def builder(*, is_batching: bool = True, codec: int = 0) -> BatchBuilder:
    return BatchBuilder(BatchLimits(is_batching=is_batching), ManualClock(), codec=codec)


def finish(open_builder: BatchBuilder) -> list[Batch]:
    open_builder.seal()
    return open_builder.take_sealed()


def test_encoding_again_gives_the_same_bytes() -> None:
    batches = builder()
    for row in range(10):
        batches.add(b"v", None, MessageFields(f"k{row}", sequence_id=row * 2))
    (sealed,) = finish(batches)

    def encoded() -> bytes:
        buffers = sealed.encode(incarnation=1, entry_seq=2, producer_name="p")
        return b"".join(bytes(buffer) for buffer in buffers)

    assert encoded() == encoded()


def test_a_single_unbatched_message_is_stored_raw() -> None:
    batches = builder(is_batching=False)
    batches.add(None, None, MessageFields("k", "o", {"a": "b"}, 5, 77))
    block = decoded(finish(batches)[0], schema_version=b"12345678")
    assert block.header.payload_format == 0
    assert block.values() == [None]
    assert block.header.first_sequence_id == block.header.last_sequence_id == 77
    metadata = block.metadata
    assert (metadata.key, metadata.ordering_key, metadata.properties) == ("k", "o", {"a": "b"})
    assert (metadata.event_time, metadata.schema_version) == (5, b"12345678")


@pytest.mark.parametrize("codec", list(CompressionType))
def test_every_codec(codec: CompressionType) -> None:
    batches = builder(codec=codec)
    for _ in range(100):
        batches.add(b"text" * 20, None)
    block = decoded(finish(batches)[0], codec=codec)
    assert block.values() == [b"text" * 20] * 100
    assert block.header.codec == codec
