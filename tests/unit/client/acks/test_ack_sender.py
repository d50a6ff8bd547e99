"""Acknowledgments are grouped, sent, and repeated until they are answered; the dispatcher is played here."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from pulsar_ray.client.acks.ack_sender import MAX_RANGES_PER_PACKET, AckSender
from pulsar_ray.client.acks.ack_tracker import MAX_GONE, AckBatch
from pulsar_ray.client.acks.partition_acks import PartitionAcks, UnansweredRequests
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import NotAllowedError, SessionLost, Timeout, WrongNode
from pulsar_ray.model.row_sets import of_ranges, span
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Acknowledge, NegativeAcknowledge
from tests.unit.client.answered_link import AnsweredLink

WAIT_S = 20.0
ID = 7
LEDGER = 3


class Link(AnsweredLink):
    """A link whose packets are answered when the test says so."""

    is_closed = False
    absence: WrongNode | None = None

    def __init__(self) -> None:
        super().__init__()
        self.beside: list[Sequence[Any]] = []

    def request_async(
        self, build: Any, reply: Any, *, waits: bool = False, behind: Sequence[Any] = ()
    ) -> None:
        super().request_async(build, reply, waits=waits, behind=behind)
        self.beside.append(behind)


class Progress:
    """Of deliveries: the fifth of numbering 2 has come, and credit is nearly due."""

    generation = 0

    def received(self) -> tuple[int, int]:
        return 2, 5

    def arrived(self) -> tuple[int, tuple[int, int, int] | None]:
        return 5, None

    def credit_beside(self) -> Sequence[Buffer]:
        return (b"credit",)

    def acknowledged(self, batch: AckBatch) -> None:
        """Nothing waits in a queue."""


class World:
    """An AckSender of an open consumer."""

    def __init__(self, **options: Any) -> None:
        link: Any = Link()
        self.link = link
        self.requests = UnansweredRequests(link)
        self.requests.is_open = True
        given = ConsumerOptions(topic="t", subscription_name="s", **options)
        self.lock = threading.Lock()
        state = PartitionAcks.stored(given, self.requests)
        self.sender = AckSender(ID, state, Progress(), given, self.lock)

    def add(self, *entries: int) -> None:
        """As an application does."""
        for entry_id in entries:
            with self.lock:
                self.sender.acks.add(LEDGER, entry_id)
            if self.sender.acks.count >= self.sender.gathered:
                self.sender.added()

    @property
    def sent(self) -> list[list[tuple[int, int, int]]]:
        """The ranges of each acknowledgment that was sent and not answered."""
        return [list(request.ranges) for request, _ in self.link.asked]


def test_acknowledgments_wait_for_a_timer_and_go_together_with_credit() -> None:
    world = World()
    world.add(0, 1, 2)
    assert not world.sent
    assert world.sender.gathered == 1000, "nobody needs to call before so many have gathered"
    (timer,) = world.link.delayed
    timer()
    assert world.sent == [[(LEDGER, 0, 2)]]
    assert world.link.beside == [(b"credit",)]
    assert world.sender.gathered == 0


def test_a_full_group_is_sent_at_once() -> None:
    world = World(ack_grouping_max_size=3)
    world.add(0, 1, 2)
    assert world.sent == [[(LEDGER, 0, 2)]]


def test_without_grouping_each_is_sent() -> None:
    world = World(ack_grouping_time_ms=0)
    world.add(0, 1)
    assert world.sent == [[(LEDGER, 0, 0)], [(LEDGER, 1, 1)]]
    assert not world.link.delayed


def test_while_detached_they_gather() -> None:
    world = World(ack_grouping_max_size=1)
    world.requests.is_open = False
    world.add(0, 1)
    assert not world.sent
    world.requests.is_open = True
    world.sender.flush()
    assert world.sent == [[(LEDGER, 0, 1)]]


def test_rows_are_held_until_their_acknowledgment_is_confirmed() -> None:
    world = World()
    world.sender.unacked.add(LEDGER, 0, 1, 1, 1)
    world.add(0)
    world.sender.flush()
    assert len(world.sender.unacked) == 1
    world.link.asked[0][1]("done", None)
    assert len(world.sender.unacked) == 0


def test_what_a_lost_carrier_took_along_is_sent_again_in_order() -> None:
    world = World(ack_grouping_time_ms=0)
    world.add(0, 1)
    for _, reply in world.link.asked:
        reply(None, SessionLost("cut"))
    world.link.asked.clear()
    world.requests.send_all()
    assert world.sent == [[(LEDGER, 0, 0)], [(LEDGER, 1, 1)]]


def test_a_durable_acknowledgment_waits_for_its_answer_and_raises_a_refusal() -> None:
    world = World()
    world.link.answer = lambda _: "done"
    world.add(0)
    world.sender.acknowledge_durably(0.0)
    world.link.answer = None
    world.add(1)
    (request,) = world.sender.send_durably()
    world.link.asked[-1][1](None, NotAllowedError("no"))
    with pytest.raises(NotAllowedError):
        world.requests.wait([request], 0.0)


def test_who_waits_for_a_partition_that_is_away_or_silent_is_told() -> None:
    world = World()
    world.add(0)
    with pytest.raises(Timeout):
        world.sender.acknowledge_durably(0.0)
    world.link.absence = WrongNode("its node is down")
    with pytest.raises(WrongNode):
        world.sender.acknowledge_durably(float("inf"))
    assert len(world.sent) == 1, "one that is not answered is not sent twice over the same carrier"


def test_acknowledgments_that_another_thread_sends_just_now_are_waited_for() -> None:
    world = World()
    world.add(0)
    is_sending, may_send = threading.Event(), threading.Event()
    send = world.requests.send

    def slow(*arguments: Any, **named: Any) -> None:
        is_sending.set()
        assert may_send.wait(WAIT_S)
        send(*arguments, **named)

    world.requests.send = slow  # type: ignore[method-assign]
    flushing = threading.Thread(target=world.sender.flush)
    flushing.start()
    assert is_sending.wait(WAIT_S)
    # Nothing is gathered any more, and nothing was sent yet.
    (awaited,) = world.sender.send_durably()
    assert not awaited.answered.is_set()
    may_send.set()
    flushing.join(WAIT_S)
    world.link.asked[0][1]("done", None)
    assert awaited.answered.is_set()


def test_threads_that_acknowledge_while_others_send_lose_nothing() -> None:
    world = World(ack_grouping_max_size=10)
    world.link.answer = lambda _: "done"
    count = 3000

    def acknowledge(first: int) -> None:
        world.add(*range(first, count, 4))

    threads = [threading.Thread(target=acknowledge, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        world.sender.flush()
    for thread in threads:
        thread.join(WAIT_S)
    world.sender.flush()
    entries = [
        entry
        for request, _ in world.link.asked
        for _, first, last in request.ranges
        for entry in range(first, last + 1)
    ]
    for request, _ in world.link.asked:
        for ledger_id, origin, bits in request.entry_bits:
            assert ledger_id == LEDGER
            flags = int.from_bytes(bits, "little")
            entries += [origin + row for row in range(flags.bit_length()) if flags >> row & 1]
    assert sorted(entries) == list(range(count))


def test_rows_of_batches_that_others_finished_are_forgotten_when_they_are_many() -> None:
    world = World()
    acks = world.sender.acks
    world.sender.unacked.add(LEDGER, 5, 1, span(0, 2), 2)
    batches = range(3 * MAX_GONE)
    for entry_id in batches:
        with world.lock:
            acks.add_row(LEDGER, entry_id, 0, 2)
        if entry_id % 100 == 0:
            world.sender.flush()
    left = [acks.outstanding_rows(LEDGER, entry_id, span(0, 2)) for entry_id in batches]
    assert left[5] == left[-1] == span(1, 2), "of what is held, and of the last ones, each row is known"
    assert left.count(span(1, 2)) < 2 * MAX_GONE


def test_what_does_not_fit_into_a_packet_is_cut() -> None:
    world = World()
    with world.lock:
        for number in range(MAX_RANGES_PER_PACKET + 1):
            world.sender.acks.add_range(LEDGER, 1_000_000 * number, 1_000_000 * number + 50)
    world.sender.flush()
    assert [len(ranges) for ranges in world.sent] == [MAX_RANGES_PER_PACKET, 1]
    assert world.link.beside == [(), (b"credit",)], "credit goes with the last one"


def test_negative_acknowledgments_go_when_they_are_due_behind_positive_ones() -> None:
    world = World(negative_ack_redelivery_delay_ms=0)
    with world.lock:
        world.sender.nacks.add(LEDGER, 4, 1, 0)
    world.sender.nacks_added()
    world.sender.nacks_added()
    assert len(world.link.delayed) == 1, "one timer for all"
    with world.lock:
        world.sender.acks.add(LEDGER, 9)
    world.link.delayed.pop()()
    first, second = [request for request, _ in world.link.asked]
    assert isinstance(first, Acknowledge)
    assert second == NegativeAcknowledge(ID, [(LEDGER, 4, (), 1)], 2, 5, None, (2, 5))


def test_a_failure_does_not_wait_for_one_that_is_due_later() -> None:
    world = World()

    def fail(entry_id: int, delay_ms: int) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        with world.lock:
            world.sender.nacks.add(LEDGER, entry_id, 0, now_ms - 100, delay_ms=delay_ms)
        world.sender.nacks_added()

    fail(4, 160_000)
    timers = len(world.link.delayed)
    fail(5, 10_000)
    fail(6, 0)
    assert len(world.link.delayed) == timers + 2, "each is due before all that wait"
    world.link.delayed.pop()()
    ((request, _),) = world.link.asked
    assert request.items == [(LEDGER, 6, (), 0)]
    fail(7, 20_000)
    assert len(world.link.delayed) == timers + 1, "the timers that run are enough for those left"


@pytest.mark.parametrize("was_open", [True, False])
def test_a_report_of_failures_that_is_lost_is_made_again(was_open: bool) -> None:
    world = World(negative_ack_redelivery_delay_ms=600_000)

    def look() -> list[int]:
        """What the dispatcher is told at the next look; each report waits for its answer in `replies`."""
        world.sender.nacks_added()
        for report in world.link.delayed[-1:]:
            report()
        world.link.delayed.clear()
        told = [(request.arguments["waiting"], reply) for request, reply in world.link.asked]
        world.link.asked.clear()
        replies.extend(reply for _, reply in told)
        return [waiting for waiting, _ in told]

    replies: list[Any] = []
    with world.lock:
        world.sender.nacks.add(LEDGER, 4, 1, time.monotonic_ns() // 1_000_000)
    assert look() == [1]
    replies.pop()(None, None)
    with world.lock:
        assert len(world.sender.nacks.due(math.inf)) == 1
    world.requests.is_open = was_open
    if was_open:
        assert look() == [0]
        replies.pop()(None, SessionLost("gone"))
    else:
        assert look() == [], "there is no dispatcher to tell"
    world.requests.is_open = True
    assert look() == [0]
    replies.pop()(None, None)
    assert look() == [], "once is enough"


def test_messages_that_failed_one_by_one_go_as_their_block_and_are_held_until_it_is_answered() -> None:
    world = World(negative_ack_redelivery_delay_ms=0)
    world.sender.unacked.add(LEDGER, 10, 1000, span(0, 1000), 1000)
    with world.lock:
        for entry_id in (*range(510, 1010), *range(10, 500)):
            world.sender.nacks.add(LEDGER, entry_id, 0, 0)
    world.sender.nacks_added()
    world.link.delayed.pop()()
    ((request, reply),) = world.link.asked
    assert request.items == [(LEDGER, 10, ((0, 490), (500, 1000)), 0)]
    assert world.sender.unacked.rows_of(LEDGER, 10) == span(0, 1000)
    reply("done", None)
    assert world.sender.unacked.rows_of(LEDGER, 10) == span(490, 500)


def test_a_failure_is_not_said_again_of_messages_that_have_come_again() -> None:
    world = World(negative_ack_redelivery_delay_ms=0)
    unacked = world.sender.unacked
    unacked.add(LEDGER, 10, 5, span(0, 5), 5)
    unacked.add(LEDGER, 15, 1, 1, 1)
    with world.lock:
        for entry_id in (11, 12, 15):
            world.sender.nacks.add(LEDGER, entry_id, 0, 0)
    world.sender.nacks_added()
    world.link.delayed.pop()()
    ((request, reply),) = world.link.asked
    assert request.items == [(LEDGER, 10, ((1, 3),), 0), (LEDGER, 15, (), 0)]
    # The dispatcher carried it out, and died before it answered.
    unacked.note_count(LEDGER, 10, span(1, 2), 1)
    unacked.note_count(LEDGER, 15, 1, 1)
    reply(None, SessionLost("gone"))
    world.link.asked.clear()
    world.requests.send_all()
    ((request, reply),) = world.link.asked
    assert request.items == [(LEDGER, 10, ((2, 3),), 0)]
    reply("done", None)
    assert unacked.rows_of(LEDGER, 10) == of_ranges(((0, 2), (3, 5))), "what has come again is held"
    assert unacked.rows_of(LEDGER, 15) == 1


def test_a_failed_part_of_a_batch_comes_again_although_another_part_came_before_that_was_due() -> None:
    world = World(negative_ack_redelivery_delay_ms=0)
    unacked = world.sender.unacked
    unacked.add(LEDGER, 54, 1, span(4, 5), 12)
    unacked.note_count(LEDGER, 54, span(4, 5), 2)
    with world.lock:
        world.sender.nacks.add(LEDGER, 54, 2, 0, ((4, 5),))
    world.sender.nacks_added()
    # Another consumer had that one, and ended; its failures have raised the count of the batch.
    unacked.add(LEDGER, 54, 1, span(11, 12), 12)
    unacked.note_count(LEDGER, 54, span(11, 12), 4)
    world.link.delayed.pop()()
    ((request, reply),) = world.link.asked
    assert request.items == [(LEDGER, 54, ((4, 5),), 2)]
    reply("done", None)
    assert unacked.rows_of(LEDGER, 54) == span(11, 12), "the part that did not fail is held"


def test_forgotten_acknowledgments_are_not_sent_and_nobody_waits_for_them() -> None:
    world = World()
    world.add(0)
    (request,) = world.sender.send_durably()
    world.add(1)
    world.sender.forget()
    assert request.answered.is_set()
    world.sender.flush()
    world.requests.send_all()
    assert len(world.sent) == 1
