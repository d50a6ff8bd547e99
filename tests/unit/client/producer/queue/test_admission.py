"""Admitting messages to a producer's queue."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock, UnconfirmedBlocks
from pulsar_ray.client.producer.queue.admission import Admission
from pulsar_ray.client.producer.queue.block_sealer import BlockSealer
from pulsar_ray.client.producer.queue.partition_access import PATIENCE_S, PartitionAccess
from pulsar_ray.client.producer.queue.partition_turn import PartitionTurn
from pulsar_ray.client.producer.queue.send_room import MAX_UNCONFIRMED_BYTES, SendRoom
from pulsar_ray.client.producer.routing import BatchTurnsRouter
from pulsar_ray.errors import AlreadyClosed, ProducerQueueIsFull, Timeout, WrongNode
from pulsar_ray.lane.waiting import running_callbacks
from tests.unit.client.producer.publishing_link import ManualTimers, PublishingLink, opened


class IdleWriter:
    """Has the shape of the writer."""

    def __init__(self) -> None:
        self.writes = 0

    def write_if_any(self) -> None:
        self.writes += 1


class There:
    """Another partition, which is there."""

    takes_keyless = True


class Admitting:
    """The parts of a queue of two messages, which is open at its partition."""

    def __init__(self, *, send_timeout_millis: int = 30_000, **options: Any) -> None:
        made = ProducerOptions(
            topic="t", max_pending_messages=2, send_timeout_millis=send_timeout_millis, **options
        )
        self.link, self.timers, self.writer = PublishingLink(), ManualTimers(), IdleWriter()
        self.lock, self.unconfirmed, numbers = threading.Lock(), UnconfirmedBlocks(), BlockNumbers()
        self.access = PartitionAccess(self.link, numbers, self.unconfirmed)
        self.access.open_on("first")  # type: ignore[arg-type]
        self.room = SendRoom(self.lock, self.unconfirmed, made)
        self.sealer = BlockSealer(made, 0, numbers, self.unconfirmed, self.room, lambda _: None)
        self.turn = PartitionTurn(0)
        self.sealer.begin(opened(), self.turn.end)
        self.admission = Admission(
            self.access,
            self.room,
            self.sealer,
            self.turn,
            self.writer,  # type: ignore[arg-type]
            self.timers,
            waits_if_full=made.block_if_queue_full,
        )

    def admit(self, *, in_turn: bool = False) -> None:
        with self.lock:
            self.admission.admit(in_turn)

    def add(self, *, in_turn: bool = False) -> None:
        """Add a message, which stays open."""
        assert self.sealer.builder is not None
        self.sealer.builder.add(b"x", None, in_turn)

    def fill(self, messages: int = 2, size: int = 1) -> None:
        self.unconfirmed.add(UnconfirmedBlock(0, 1, messages, [], size, 0.0, lambda *_: None))


def test_it_knows_how_many_messages_fit_without_another_look() -> None:
    it = Admitting()
    it.admit()
    assert it.room.sure == 2
    it.fill(1)
    it.admit()
    assert [it.room.sure, it.admission.room_left] == [1, 1]


def test_while_the_partition_is_not_open_each_message_looks() -> None:
    it = Admitting()
    it.access.lost_carrier()
    it.admit()
    assert it.room.sure == 1
    it.link.absence = WrongNode("away")
    with pytest.raises(WrongNode):
        it.admit()
    it.access.end(AlreadyClosed("closed"))
    with pytest.raises(AlreadyClosed):
        it.admit()


def test_a_full_queue_refuses_and_one_that_may_wait_seals_what_is_open_for_room() -> None:
    it = Admitting(batching_enabled=True)
    it.fill()
    with pytest.raises(ProducerQueueIsFull):
        it.admit()

    it = Admitting(batching_enabled=True, block_if_queue_full=True, send_timeout_millis=1)
    it.add()
    it.add()
    with pytest.raises(Timeout):
        it.admit()
    assert [it.sealer.gathered, len(it.unconfirmed)] == [0, 1]
    it.timers.run()
    assert it.writer.writes == 1


def test_on_the_thread_that_makes_room_nobody_waits_for_it() -> None:
    it = Admitting(block_if_queue_full=True)
    it.fill()
    with running_callbacks(), pytest.raises(ProducerQueueIsFull, match="callback"):
        it.admit()
    it.timers.is_current = True
    with pytest.raises(ProducerQueueIsFull, match="callback"):
        it.admit()


def test_a_message_in_turn_goes_elsewhere_instead_of_waiting() -> None:
    it = Admitting(batching_enabled=True)
    turns = BatchTurnsRouter(2, 0, hash)
    it.turn.join(turns)
    it.add(in_turn=True)
    it.add(in_turn=True)
    it.admit(in_turn=True)  # finishing the open batch ends the turn
    assert turns.current == 1
    assert it.room.sure == 0


def test_a_silent_partition_passes_its_turn_on() -> None:
    it = Admitting(batching_enabled=True)
    turns = BatchTurnsRouter(2, 0, hash)
    turns.serve([it.access, There()])
    it.turn.join(turns)
    it.access.lost_carrier()
    it.access.closed_at_s -= PATIENCE_S + 1
    it.admit(in_turn=True)
    assert turns.current == 1


def test_a_block_is_limited_by_bytes_and_every_message_looks_behind_it() -> None:
    it = Admitting()
    it.fill()
    it.room.sure = 1
    with it.lock:
        it.admission.admit_block(0, MAX_UNCONFIRMED_BYTES - 1)
    assert it.room.sure == 0
    with it.lock, pytest.raises(ProducerQueueIsFull):
        it.admission.admit_block(1, 1)
    it.access.end(AlreadyClosed("closed"))
    with it.lock, pytest.raises(AlreadyClosed):
        it.admission.admit_block(0, 1)
