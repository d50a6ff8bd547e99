"""The mover copies messages, and only then acknowledges them; producers and dispatcher are played here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.dead_letters.dead_letter_mover import DeadLetterMover
from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.schemas.registration import NO_WRITER, Writer
from pulsar_ray.errors import MessageTooBig, ProducerBusy, TopicTerminated
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.session.requests import Acknowledge, NegativeAcknowledge, Reset
from pulsar_ray.testing.waiting import wait_until
from tests.unit.client.consumer.delivering import (
    LEDGER,
    TOPIC,
    DispatcherLink,
    core_of,
    deliver,
    open_partition,
)

LIMIT = 2


class Producers:
    """Takes copies, or refuses them, once it is `allowed`."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.calls = 0
        self.error: Exception | None = None
        self.allowed = threading.Event()
        self.allowed.set()
        self.is_routed_by_hand = False
        self.max_message_size = 5 << 20
        self.refusing: set[str] = set()
        self.opened: list[str] = []

    @contextmanager
    def lent(self, source: str, *, is_dead: bool, writer: Writer) -> Iterator[Producers]:
        assert is_dead
        assert writer == NO_WRITER
        self.opened.append(source)
        if source in self.refusing:
            raise ProducerBusy(f"the name for {source} is taken")
        yield self

    def is_chunked(self, value: bytes) -> bool:
        return False

    def send_many(self, values: list[bytes], **columns: Any) -> None:
        assert self.allowed.wait(20)
        self.calls += 1
        if self.error is not None:
            raise self.error
        self.sent += values

    def send(self, value: bytes, **columns: Any) -> None:
        if len(value) > 2 << 20:
            raise MessageTooBig(f"{len(value)} bytes")
        self.send_many([value])

    def close(self) -> None:
        """Nothing is open."""


class Moving:
    """A consumer with a mover, and its dispatcher."""

    def __init__(self, *topics: str) -> None:
        self.core: ConsumerCore = core_of(
            *topics,
            consumer_type=ConsumerType.Shared,
            dead_letter_policy=ConsumerDeadLetterPolicy(LIMIT),
            negative_ack_redelivery_delay_ms=0,
            receiver_queue_size=10,
        )
        self.partition: PartitionConsumer
        self.link: DispatcherLink
        self.partition, self.link = open_partition(self.core)
        self.producers = Producers()
        producers: Any = self.producers
        self.mover = DeadLetterMover(self.core, LetterTopics(self.core.options), producers)

    def asked(self, kind: type) -> list[Any]:
        return [request for request, _ in self.link.asked if isinstance(request, kind)]


@pytest.fixture
def moving() -> Any:
    made = Moving()
    yield made
    made.mover.close(0.0)


def wait_until_consumed(partition: PartitionConsumer, count: int) -> None:
    wait_until(lambda: partition.deliveries.count.consumed == count, what=f"{count} that went or are left")


def test_a_copy_comes_before_the_acknowledgment_and_the_credit(moving: Moving) -> None:
    moving.producers.allowed.clear()
    deliver(moving.partition, 1, b"poison", count=LIMIT + 1)
    deliver(moving.partition, 2, b"fine", count=LIMIT)
    assert moving.core.receive(0.0).data() == b"fine"
    assert (moving.partition.deliveries.count.moving, moving.partition.deliveries.count.consumed) == (1, 1)
    assert not moving.asked(Acknowledge)
    moving.producers.allowed.set()
    wait_until(lambda: moving.partition.deliveries.count.consumed == 2, what="the move")
    assert moving.producers.sent == [b"poison"]
    (acknowledged,) = moving.asked(Acknowledge)
    assert acknowledged.ranges == [(3, 0, 0)]
    assert moving.partition.deliveries.count.moving == 0


def test_messages_that_wait_go_together(moving: Moving) -> None:
    moving.producers.allowed.clear()
    for number in range(1, 10):
        deliver(moving.partition, number, b"%d" % number, count=LIMIT + 1)
    moving.producers.allowed.set()
    wait_until(lambda: len(moving.producers.sent) == 9, what="all copies")
    assert moving.producers.calls <= 2, "what came first, and the rest"


def test_a_refusal_is_one_try_for_all_that_wait(moving: Moving) -> None:
    moving.producers.allowed.clear()
    moving.producers.error = TopicTerminated("no more")
    for number in range(1, 10):
        deliver(moving.partition, number, b"%d" % number, count=LIMIT + 1)
    moving.producers.allowed.set()
    wait_until(lambda: moving.partition.deliveries.count.consumed == 9, what="the attempts")
    assert moving.producers.calls <= 2, "what came first, and perhaps the rest"
    assert len(moving.partition.ack_sender.nacks) == 9
    deadline_ms = moving.partition.ack_sender.nacks.next_deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms - time.monotonic() * 1000 < 1000, "they come again when it is tried again"


def test_a_destination_that_refuses_holds_up_no_other() -> None:
    moving = Moving(TOPIC, f"{TOPIC}2")
    other, _ = open_partition(moving.core, f"{TOPIC}2")
    try:
        moving.producers.refusing.add(TOPIC)
        for number in range(1, 4):
            deliver(moving.partition, number, b"stays", count=LIMIT + 1)
            wait_until_consumed(moving.partition, number)
            deliver(other, number, b"goes", count=LIMIT + 1)
            wait_until_consumed(other, number)
        assert moving.producers.sent == [b"goes"] * 3
        assert moving.producers.opened.count(TOPIC) <= 2, "it waits for itself"
        assert len(moving.partition.ack_sender.nacks) == 3
    finally:
        moving.mover.close(0.0)


def test_a_copy_that_is_too_large_keeps_no_other_and_none_is_copied_twice(moving: Moving) -> None:
    moving.producers.allowed.clear()
    for number, value in enumerate((b"a", b"x" * (3 << 20), b"b", b"y" * (1 << 20), b"c"), 1):
        deliver(moving.partition, number, value, count=LIMIT + 1)
    moving.producers.allowed.set()
    wait_until(lambda: moving.partition.deliveries.count.consumed == 5, what="the moves")
    assert moving.producers.sent == [b"a", b"b", b"y" * (1 << 20), b"c"]
    assert len(moving.partition.ack_sender.nacks) == 1


@pytest.mark.parametrize("moved", [1, 3])
def test_moved_rows_of_a_batch_are_kept_by_the_dispatcher(moving: Moving, moved: int) -> None:
    rows = ((0, moved),)
    deliver(moving.partition, 1, b"a", b"b", b"c", count=LIMIT + 1, rows=rows)
    wait_until(lambda: moving.partition.deliveries.count.consumed == moved, what="the move")
    (acknowledged,) = moving.asked(Acknowledge)
    if moved == 3:
        assert acknowledged.ranges == [(LEDGER, 0, 0)]
        assert not acknowledged.moved_rows
    else:
        assert list(acknowledged.moved_rows) == [(LEDGER, 0, rows)]


def test_a_refused_copy_leaves_its_message_to_come_again(moving: Moving) -> None:
    moving.producers.error = TopicTerminated("no more")
    deliver(moving.partition, 1, b"poison", count=LIMIT + 1)
    wait_until(lambda: moving.partition.deliveries.count.consumed == 1, what="the attempt")
    assert len(moving.partition.ack_sender.nacks) == 1
    assert not moving.asked(Acknowledge)
    assert not moving.asked(NegativeAcknowledge), "not at once, though the redelivery delay is none"


def test_what_was_acknowledged_while_it_waited_is_not_copied(moving: Moving) -> None:
    deliver(moving.partition, 1, b"fine")
    deliver(moving.partition, 2, b"late", count=LIMIT + 1)
    deliver(moving.partition, 3, b"poison", count=LIMIT + 1)
    with moving.core.lock:
        moving.partition.ack_sender.acks.add(LEDGER, 1)
    assert moving.core.receive(0.0).data() == b"fine"
    wait_until(lambda: moving.partition.deliveries.count.consumed == 3, what="the move")
    assert moving.producers.sent == [b"poison"]


def test_behind_a_seek_the_copied_message_is_not_acknowledged(moving: Moving) -> None:
    moving.producers.allowed.clear()
    deliver(moving.partition, 1, b"poison", count=LIMIT + 1)
    wait_until(lambda: moving.partition.deliveries.count.moving == 1, what="the begin")
    generation = 1 << 32
    reset = Reset(moving.partition.consumer_id, generation, True, 1, 1)
    moving.partition.session.on_request(reset, memoryview(b""))
    moving.producers.allowed.set()
    wait_until(lambda: moving.producers.sent == [b"poison"], what="the copy")
    moving.mover.close(20.0)
    assert not moving.asked(Acknowledge)
    assert (moving.partition.deliveries.count.moving, moving.partition.deliveries.count.consumed) == (0, 1)
