"""Making numbered blocks."""

from __future__ import annotations

import threading
from typing import Any

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.chunked_message import ChunkedMessage
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock, UnconfirmedBlocks
from pulsar_ray.client.producer.queue.block_sealer import BlockSealer
from pulsar_ray.client.producer.queue.send_room import MAX_UNCONFIRMED_BYTES, SendRoom
from pulsar_ray.errors import DiskSpaceLow
from pulsar_ray.format.block import BlockHeader, parse_block_header
from tests.unit.client.producer.publishing_link import opened


class Sealed:
    """A sealer that has begun, and the parts it fills."""

    def __init__(self, **options: Any) -> None:
        self.numbers = BlockNumbers()
        self.unconfirmed = UnconfirmedBlocks()
        self.stored: list[int] = []
        made = ProducerOptions(topic="t", **options)
        self.room = SendRoom(threading.Lock(), self.unconfirmed, made)
        self.sealer = BlockSealer(made, 0, self.numbers, self.unconfirmed, self.room, self.stored.append)

    def begin(self) -> None:
        self.sealer.begin(opened("maker"), lambda: None)

    def add(self, *values: bytes) -> None:
        assert self.sealer.builder is not None
        for value in values:
            self.sealer.builder.add(value, None)

    def encoded(self, size: int = 1, messages: int = 3, entries: int = 2) -> list[Any]:
        """Add a block encoded elsewhere; what its encoder was given."""
        given: list[Any] = []

        def encode(*numbers: Any) -> list[Any]:
            given.extend(numbers)
            return [b""]

        self.sealer.add_encoded(
            encode, entries=entries, messages=messages, size=size, done=lambda *outcome: None
        )
        return given

    def headers(self) -> list[BlockHeader]:
        return [parse_block_header(b"".join(block.encoded())) for block in self.unconfirmed if block.size > 1]


def test_before_the_partition_answers_there_is_nothing_to_finish() -> None:
    it = Sealed(producer_name="given")
    it.sealer.take_finished(seal=True)
    assert [it.sealer.gathered, len(it.unconfirmed), it.sealer.producer_name] == [0, 0, "given"]
    it.begin()
    assert it.sealer.producer_name == "maker"


def test_finished_batches_get_their_numbers_in_order_and_an_open_one_waits() -> None:
    it = Sealed(batching_enabled=True, batching_max_messages=2)
    it.begin()
    it.add(b"aa", b"bb", b"cc")
    it.sealer.take_finished(seal=False)
    assert [it.sealer.gathered, it.numbers.next_seq] == [1, 1]
    it.sealer.take_finished(seal=True)
    assert [(header.entry_seq, header.message_count) for header in it.headers()] == [(0, 2), (1, 1)]
    assert it.sealer.gathered == 0


def test_a_single_message_becomes_a_block_at_once_unless_something_is_open() -> None:
    it = Sealed()
    it.begin()
    assert it.sealer.add_single(b"aa", None)
    it.add(b"bb")
    assert not it.sealer.add_single(b"cc", None)
    assert len(it.unconfirmed) == 1
    it = Sealed(batching_enabled=True)
    it.begin()
    assert not it.sealer.add_single(b"aa", None)


def test_a_block_from_elsewhere_comes_behind_what_was_added_and_takes_its_ids() -> None:
    it = Sealed(batching_enabled=True)
    it.begin()
    it.add(b"aa", b"bb")
    assert it.encoded() == [it.numbers.incarnation, 1, "maker", 2]
    assert it.encoded() == [it.numbers.incarnation, 3, "maker", 5]
    _, first, refused = list(it.unconfirmed)
    first.outcome, refused.outcome = (1, 1, None), (-1, -1, DiskSpaceLow("full"))
    for block in (first, refused):
        block.complete()
    assert it.stored == [4]


def test_chunks_come_behind_what_was_added_and_share_one_id() -> None:
    it = Sealed(batching_enabled=True)
    it.begin()
    it.add(b"aa")
    message = ChunkedMessage.cut(b"x" * 2500, None, 0, 1000, 20_000)
    assert message is not None
    it.sealer.add_chunks(message, None, None)
    it.add(b"bb")
    it.sealer.take_finished(seal=True)
    ids = [(header.entry_seq, header.first_sequence_id) for header in it.headers()]
    assert ids == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2)]


def test_blocks_that_fill_the_queue_make_the_next_message_look() -> None:
    it = Sealed(batching_enabled=True)
    it.begin()
    it.room.sure = 5
    it.add(b"aa")
    it.sealer.take_finished(seal=True)
    assert it.room.sure == 5
    it.unconfirmed.add(UnconfirmedBlock(9, 1, 1, [], MAX_UNCONFIRMED_BYTES, 0.0, lambda *_: None))
    it.add(b"bb")
    it.sealer.take_finished(seal=True)
    assert it.room.sure == 0
