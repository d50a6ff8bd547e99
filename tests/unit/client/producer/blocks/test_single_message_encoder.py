from __future__ import annotations

import pytest

from pulsar_ray.client.producer.blocks.batch_builder import BatchBuilder, BatchLimits
from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.single_message_encoder import SingleMessageEncoder
from pulsar_ray.errors import PulsarException, Result, UnknownError
from pulsar_ray.format.block import parse_block_header
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.manual_clock import ManualClock


def unbatched(publish_time_ms: int = 0, first_sequence_id: int = 0) -> BatchBuilder:
    clock = ManualClock(publish_time_ms)
    return BatchBuilder(BatchLimits(is_batching=False), clock, first_sequence_id=first_sequence_id)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 1024, 4096, 4097, 60_000])
def test_a_lone_message_is_the_block_that_a_sealed_batch_of_it_is(size: int) -> None:
    numbers = BlockNumbers()
    numbers.take(5)
    value = bytes(index % 251 for index in range(size))
    sequence_id = unbatched(first_sequence_id=41).id_alone(value)
    assert sequence_id == 41
    block = SingleMessageEncoder("prodücer", 3, lambda _: None).encode(value, None, sequence_id, numbers)
    lone = b"".join(block.buffers)

    general = unbatched(parse_block_header(lone).publish_time_ms, first_sequence_id=41)
    general.add(value, None)
    general.seal()
    (sealed,) = general.take_sealed()
    buffers = sealed.encode(incarnation=numbers.incarnation, entry_seq=5, producer_name="prodücer")
    assert lone == b"".join(buffers)
    assert (block.entry_seq, block.entries, block.messages, block.size) == (5, 1, 1, sealed.payload_bytes)
    assert numbers.next_seq == 6


def test_ids_go_on_whether_messages_are_added_or_not() -> None:
    builder = unbatched()
    assert builder.id_alone(b"a") == 0
    builder.add(b"b", None)
    assert builder.id_alone(b"c") is None  # it would overtake what is open
    builder.seal()
    assert builder.id_alone(b"c") is None  # or finished
    assert builder.take_sealed()[0].first_sequence_id == 1
    assert builder.id_alone(b"c") == 2
    builder.add_message(b"d", None, sequence_id=10)
    builder.seal()
    builder.take_sealed()
    assert builder.id_alone(b"e") == 11


def test_a_message_whose_size_has_to_be_looked_at_is_added() -> None:
    assert unbatched().id_alone(bytes(100_000)) is None


def test_its_outcome_is_told_in_order() -> None:
    told: list[object] = []

    def callback(result: Result, message_id: MessageId) -> None:
        told.append((result, message_id))
        raise RuntimeError("of the application")

    blocks = SingleMessageEncoder("p", 3, told.append)
    blocks.encode(b"v", callback, 8, BlockNumbers()).done(7, 9, None, 0)
    assert told == [8, (Result.Ok, MessageId(3, 7, 9))]

    told.clear()
    error: PulsarException = UnknownError("refused")
    blocks.encode(b"v", callback, 8, BlockNumbers()).done(-1, -1, error, 0)
    assert told == [(error.result, MessageId())]
