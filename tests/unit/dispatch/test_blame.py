"""Messages that end their consumers are found in few crashes; neighbours are not blamed, others go on."""

from __future__ import annotations

import math
import os
import random
from collections import deque

import msgpack
import pytest

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import PATIENCE_MS, ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.suspects.blame import Crash
from pulsar_ray.managed_ledger.cursor.cursor_store import cursor_from_snapshot, snapshot_payload
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position
from tests.unit.dispatch.keys_rig import KeysRig
from tests.unit.dispatch.rig import Rig
from tests.unit.dispatch.validation import validate

SEEDS = pytest.mark.parametrize("seeds", [15, pytest.param(100, marks=pytest.mark.long)])
TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]
LIMIT = 2
"""Failures after which a message is moved away instead of being handed out once more."""

Message = tuple[int, int]
"""(entry id, row)."""


class Process:
    """Takes up to `at_once` messages in hand, works on them, and then acknowledges them."""

    def __init__(self, spec: ConsumerSpec, at_once: int, window: int) -> None:
        self.spec = spec
        self.at_once = at_once
        self.window = window
        self.queue: deque[tuple[Message, int, bool]] = deque()
        self.in_hand: list[tuple[Message, int]] = []
        self.last: Message = (-1, -1)
        """The last message that it took out of its queue."""
        self.handed_over = 0
        self.received = 0


class Lab:
    """One subscription, its processes, and messages some of which are poison."""

    def __init__(self, seed: int, consumer_type: ConsumerType) -> None:
        self.random = random.Random(seed)
        self.type = consumer_type
        self.is_known = self.random.random() < 0.7
        """Whether the dispatcher can see how much a process had handed over when it ended."""
        self.loses_reports = not self.is_known and self.random.random() < 0.5
        """Whether reports that were just sent die with their process."""
        self.at_once = self.random.choice([1, 1, 7, 30])
        self.window = self.random.choice([1, 20, 50])
        self.many = 1 if consumer_type is ConsumerType.Exclusive else self.random.randint(1, 3)
        self.refs: list[BlockRef] = []
        self.messages: list[Message] = []
        entry = 0
        for _ in range(self.random.randint(1, 40)):
            rows = self.random.randint(1, 9)
            is_batch = rows > 1 and self.random.random() < 0.4
            entries = 1 if is_batch else rows
            self.refs.append(BlockRef(1, 0, 0, 100, entry, entries, rows, rows > 1 and not is_batch))
            self.messages += [(entry, row) if is_batch else (entry + row, 0) for row in range(rows)]
            entry += entries
        self.last = entry - 1
        self.slots = [self.random.randrange(1, 200) for _ in self.refs]
        poisons = min(self.random.randint(1, 3), len(self.messages))
        self.poisons = set(self.random.sample(self.messages, poisons))
        self.failures: dict[Message, int] = {}
        self.done: set[Message] = set()
        self.moved: set[Message] = set()
        self.crashes = 0
        self.most_in_hand = 1
        self.now_ms = 0
        self.epoch = 1
        self.next_id = 1
        self.processes: dict[int, Process] = {}
        self.dispatcher = self._dispatcher(ManagedCursor(CursorSubscription("s"), Position(1, -1)))

    def _dispatcher(self, cursor: ManagedCursor) -> Dispatcher:
        cursor.set_ledgers([(1, self.last)])
        settings = DispatchSettings(reattach_grace_ms=0)
        return Dispatcher(cursor, settings, epoch=self.epoch, now_ms=self.now_ms)

    def start(self) -> None:
        spec = ConsumerSpec(self.next_id, f"c{self.next_id}", self.type, joined=self.next_id)
        self.next_id += 1
        self.processes[spec.incarnation] = Process(spec, self.at_once, self.window)
        self.dispatcher.attach_consumer(spec, self.now_ms)
        self.report(self.processes[spec.incarnation])

    def report(self, process: Process) -> None:
        self.dispatcher.set_credit(
            process.spec.incarnation,
            process.handed_over + process.window,
            process.received,
            process.handed_over,
        )

    def dispatch(self) -> None:
        for drop in self.dispatcher.elect(self.now_ms):
            self._drop(drop)
        read = [
            i for i, r in enumerate(self.refs) if (1, r.last_entry_id) >= self.dispatcher.intake.read_position
        ]
        blocks = ReadBlocks([self.refs[i] for i in read], [self.slots[i] for i in read])
        self.dispatcher.offer(blocks, self.dispatcher.reading_number)
        for grant in self.dispatcher.dispatch(self.now_ms):
            process = self.processes[grant.incarnation]
            process.received = grant.number
            ref = grant.block
            failures = {r: n for a, b, n in grant.row_failures for r in range(a, b)}
            for start, end in grant.rows:
                for row in range(start, end):
                    message = (ref.first_entry_id, row) if ref.is_batch else (ref.first_entry_id + row, 0)
                    failed = failures.get(row, 0) if ref.is_batch else grant.redelivery_count
                    assert failed == self.failures.get(message, 0), f"failures of {message}"
                    process.queue.append((message, failed, grant.is_suspect))
        validate(self.dispatcher)

    def _drop(self, drop: DropQueue) -> None:
        process = self.processes[drop.incarnation]
        process.queue.clear()
        process.in_hand.clear()
        process.last = (-1, -1)
        process.handed_over = drop.granted
        self.report(process)

    def work(self, process: Process) -> None:
        """One step: take messages in hand, and when there are enough or no more come, work on them."""
        before = len(process.in_hand)
        is_lost = False
        while process.queue and len(process.in_hand) < process.at_once:
            message, failed, is_suspect = process.queue.popleft()
            process.handed_over += 1
            if self.type in (ConsumerType.Exclusive, ConsumerType.Failover):
                assert process.last < message, f"{message} behind {process.last}"
                process.last = message
            if is_suspect and not self.is_known:
                is_lost = is_lost or (self.loses_reports and self.random.random() < 0.2)
                if not is_lost:
                    self.report(process)
            if failed > LIMIT:
                self.moved.add(message)
                self._acknowledge(process, [message])
                self.report(process)
                continue
            process.in_hand.append((message, failed))
        if process.in_hand and (len(process.in_hand) == process.at_once or len(process.in_hand) == before):
            hand = [message for message, _ in process.in_hand]
            self.most_in_hand = max(self.most_in_hand, len(hand) if self.is_known else process.window + 9)
            if self.poisons & set(hand):
                self.crash(process)
                return
            process.in_hand.clear()
            self.done |= set(hand)
            self._acknowledge(process, hand)
        self.report(process)

    def _acknowledge(self, process: Process, messages: list[Message]) -> None:
        batches = {ref.first_entry_id for ref in self.refs if ref.is_batch}
        for entry, row in messages:
            if entry in batches:
                self.dispatcher.acknowledge(process.spec.incarnation, batch=[(1, entry, ((row, row + 1),))])
            else:
                self.dispatcher.acknowledge(process.spec.incarnation, [(1, entry, entry)])

    def crash(self, process: Process) -> None:
        """End a process; count whom the dispatcher blames."""
        self.crashes += 1
        del self.processes[process.spec.incarnation]
        before = self._blamed()
        self.dispatcher.remove_consumer(
            process.spec.incarnation,
            ConsumerExit.CRASHED,
            handed_over=process.handed_over if self.is_known else None,
        )
        for message in self.messages:
            if (failed := self._blamed()[message]) != before[message]:
                assert message in self.poisons, f"{message} is innocent"
                self.failures[message] = failed

    def _blamed(self) -> dict[Message, int]:
        counts = self.dispatcher.cursor.counts
        found = {}
        for ref in self.refs:
            failures = counts.row_failures(Position(1, ref.first_entry_id))
            for row in range(ref.messages):
                if ref.is_batch:
                    found[ref.first_entry_id, row] = next((n for a, b, n in failures if a <= row < b), 0)
                else:
                    found[ref.first_entry_id + row, 0] = counts.of(1, ref.first_entry_id + row)
        return found

    def restart(self) -> None:
        """The dispatcher starts again; its processes are new ones, which say nothing of what they had."""
        payload = msgpack.unpackb(
            msgpack.packb(snapshot_payload(self.dispatcher.cursor)), strict_map_key=False
        )
        for process in list(self.processes.values()):
            self.dispatcher.remove_consumer(process.spec.incarnation, ConsumerExit.CLOSED)
        self.processes.clear()
        self.epoch += 1
        cursor = cursor_from_snapshot(payload)
        cursor.consumers.clear()
        self.dispatcher = self._dispatcher(cursor)

    def is_over(self) -> bool:
        return len(self.done | self.moved) == len(self.messages)

    def run(self) -> None:
        for _ in range(20_000):
            while len(self.processes) < self.many:
                self.start()
            self.dispatch()
            for process in list(self.processes.values()):
                self.work(process)
            if self.random.random() < 0.02:
                self.restart()
            self.now_ms += 100
            if self.is_over():
                return
        raise AssertionError(f"never done: {sorted(set(self.messages) - self.done - self.moved)[:9]}")


@SEEDS
@pytest.mark.parametrize("consumer_type", TYPES, ids=str)
def test_every_poison_message_is_found_and_nobody_else_is_blamed(
    consumer_type: ConsumerType, seeds: int
) -> None:
    for seed in range(int(os.environ.get("PULSAR_RAY_TEST_SEEDS", seeds))):
        lab = Lab(seed, consumer_type)
        print(f"seed {seed}, {consumer_type!s}, {lab.many} processes, {lab.at_once} at once, {lab.is_known}")
        lab.run()
        assert lab.moved == lab.poisons
        assert lab.done == set(lab.messages) - lab.poisons
        steps = 1 + math.ceil(math.log2(lab.most_in_hand))
        if not lab.is_known:
            steps += 1  # of all that was granted, which may be more than was in hand
        assert lab.crashes <= len(lab.poisons) * (steps + LIMIT), f"{lab.crashes} crashes"


@pytest.mark.parametrize("consumer_type", [ConsumerType.Exclusive, ConsumerType.Failover], ids=str)
def test_suspects_in_the_middle_of_a_batch_come_at_their_place(consumer_type: ConsumerType) -> None:
    rig = Rig([-22])

    def begin(incarnation: int) -> list[tuple[tuple[int, int], ...]]:
        rig.add(incarnation, 100, consumer_type)
        rig.dispatcher.elect(rig.now_ms)
        return [grant.rows for grant in rig.grants()]

    assert begin(1) == [((0, 22),)]
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=22)
    assert begin(2) == [((0, 11),)]
    rig.dispatcher.has_handed_over(2, 11)
    second: list[tuple[tuple[int, int], ...]] = []
    while not second:
        rig.now_ms += PATIENCE_MS
        second = [grant.rows for grant in rig.grants()]
    assert second == [((11, 22),)]
    rig.dispatcher.remove_consumer(2, ConsumerExit.CRASHED, handed_over=15)
    got = begin(3)
    for _ in range(10):
        handed_over = sum(end - first for rows in got for first, end in rows)
        rig.dispatcher.has_handed_over(3, handed_over)
        rig.now_ms += PATIENCE_MS
        got += [grant.rows for grant in rig.grants()]
    assert got == [((0, 11),), ((11, 13),), ((13, 15),), ((15, 22),)]


def test_a_message_that_was_alone_in_hand_has_failed_at_the_first_crash() -> None:
    rig = Rig([10])
    rig.add(1, credit=10)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=1)
    rig.add(2, credit=10)
    (others,) = rig.grants()
    assert (others.rows, others.redelivery_count) == (((1, 10),), 0), "the others come first"
    rig.dispatcher.acknowledge(2, [(1, 1, 9)])
    (alone,) = rig.grants()
    assert (alone.rows, alone.is_suspect, alone.redelivery_count) == (((0, 1),), True, 1)


def test_suspects_that_wait_are_still_to_come() -> None:
    rig = Rig([2])
    rig.add(1, credit=2)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=2)
    rig.add(2, credit=10)
    (first,) = rig.grants()
    assert first.rows == ((0, 1),)
    assert rig.dispatcher.has_more(Position(1, 1)) is True, "the other one waits until this one is done"
    rig.dispatcher.acknowledge(2, [(1, 0, 0)])
    (second,) = rig.grants()
    assert second.rows == ((1, 2),)
    assert rig.dispatcher.has_more(Position(1, 1)) is False


def test_the_second_half_is_cleared_when_the_first_explains_a_crash() -> None:
    rig = Rig([8])
    rig.add(1, credit=8)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=8)
    rig.add(2, credit=100)
    (half,) = rig.grants()
    assert (half.rows, half.is_suspect) == (((0, 4),), True)
    assert rig.grants() == [], "nothing beside it"
    rig.dispatcher.remove_consumer(2, ConsumerExit.CRASHED, handed_over=4)
    rig.add(3, credit=100)
    (cleared,) = rig.grants()
    assert (cleared.rows, cleared.is_suspect, cleared.redelivery_count) == (((4, 8),), False, 0)
    rig.dispatcher.acknowledge(3, [(1, 4, 7)])
    (quarter,) = rig.grants()
    assert (quarter.rows, quarter.is_suspect) == (((0, 2),), True)


def test_a_consumer_that_leaves_or_fails_a_suspect_clears_nobody_else() -> None:
    rig = Rig([4])
    rig.add(1, credit=4)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=4)
    rig.add(2, credit=4)
    rig.grants()
    rig.dispatcher.negative_acknowledge(2, [(1, 0, (), 0)])
    rig.dispatcher.remove_consumer(2, ConsumerExit.CLOSED)
    rig.add(3, credit=4)
    (failed,) = rig.grants()
    assert (failed.rows, failed.is_suspect, failed.redelivery_count) == (((0, 1),), False, 1)
    rig.dispatcher.acknowledge(3, [(1, 0, 0)])
    (suspect,) = rig.grants()
    assert (suspect.rows, suspect.is_suspect, suspect.redelivery_count) == (((1, 2),), True, 0)


def test_a_report_of_some_suspects_blames_none_of_those_that_it_may_not_tell_of() -> None:
    """What a process took in hand last before it ended it may not have told any more."""
    rig = Rig([8])
    rig.add(1, credit=8)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED)
    rig.add(2, credit=100)
    (half,) = rig.grants()
    assert half.rows == ((0, 4),)
    rig.dispatcher.set_credit(2, 100, half.number, handed_over=1)
    crash = rig.dispatcher.remove_consumer(2, ConsumerExit.CRASHED)
    assert crash == Crash(held=4, handed_over=1, failed="")
    rig.add(3, credit=100)
    (cleared,) = rig.grants()
    assert (cleared.rows, cleared.is_suspect) == (((4, 8),), False)
    rig.dispatcher.acknowledge(3, [(1, 4, 7)])
    (told,) = rig.grants()
    assert (told.rows, told.is_suspect, told.redelivery_count) == (((0, 1),), True, 0)
    rig.dispatcher.acknowledge(3, [(1, 0, 0)])
    (untold,) = rig.grants()
    assert (untold.rows, untold.is_suspect, untold.redelivery_count) == (((1, 4),), True, 0)


def test_a_suspect_that_was_granted_alone_and_reported_has_failed() -> None:
    rig = Rig([2])
    rig.add(1, credit=2)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED)
    rig.add(2, credit=1)
    (alone,) = rig.grants()
    rig.dispatcher.set_credit(2, 1, alone.number, handed_over=1)
    assert rig.dispatcher.remove_consumer(2, ConsumerExit.CRASHED) == Crash(1, 1, "1:0")


def test_suspects_that_were_granted_and_not_handed_over_stay_suspect_unblamed() -> None:
    rig = Rig([2])
    rig.add(1, credit=2)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=2)
    rig.add(2, credit=2)
    rig.grants()
    rig.dispatcher.remove_consumer(2, ConsumerExit.CRASHED, handed_over=0)
    rig.add(3, credit=2)
    (again,) = rig.grants()
    assert (again.rows, again.is_suspect, again.redelivery_count) == (((0, 1),), True, 0)


def test_a_program_that_wants_more_before_it_acknowledges_gets_more_after_a_while() -> None:
    rig = Rig([1] * 10)
    rig.add(1, credit=4)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=4)
    rig.add(2, credit=6)
    assert len(rig.grants()) == 6, "others first"
    rig.report(2, 100)
    assert rig.grants() == [], "it is to become free"
    rig.now_ms += PATIENCE_MS
    assert [grant.is_suspect for grant in rig.grants()] == [True, True]
    rig.now_ms += PATIENCE_MS
    rig.dispatcher.remove_consumer(2, ConsumerExit.CRASHED, handed_over=8)
    rig.add(3, credit=100)
    assert [(g.block.first_entry_id, g.is_suspect) for g in rig.grants()] == [
        (entry, False) for entry in (2, 3, 4, 5, 6, 7, 8, 9)
    ], "the suspects explain the crash"


@pytest.mark.parametrize("consumer_type", TYPES, ids=str)
def test_a_program_that_acknowledges_nothing_for_long_gets_the_whole_batch_and_what_follows(
    consumer_type: ConsumerType,
) -> None:
    rig = Rig([-8, 3], slots=[1, 1] if consumer_type is ConsumerType.KeyShared else None)
    rig.add(1, credit=100, consumer_type=consumer_type)
    rig.dispatcher.elect(rig.now_ms)
    rig.grants()
    rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=6)
    rig.add(2, credit=100, consumer_type=consumer_type)
    rig.dispatcher.elect(rig.now_ms)
    got: list[Message] = []
    for _ in range(10):
        for grant in rig.grants():
            entry = grant.block.first_entry_id
            got += [(entry, row) for start, end in grant.rows for row in range(start, end)]
            rig.dispatcher.has_handed_over(2, len(got))
        rig.now_ms += PATIENCE_MS
    assert sorted(got) == [(0, row) for row in range(8)] + [(1, row) for row in range(3)]


@pytest.mark.parametrize(("blocks", "failed"), [([1, 1, 1], "1:0"), ([3], "1:0"), ([-3], "1:0:0")])
def test_a_crash_tells_the_one_message_that_it_is_laid_to(blocks: list[int], failed: str) -> None:
    rig = Rig(blocks)
    rig.add(1, credit=3)
    rig.grants()
    crash = rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=1)
    assert crash == Crash(held=3, handed_over=1, failed=failed)


def test_a_crash_with_several_messages_in_hand_names_none() -> None:
    rig = Rig([1, 1, 1])
    rig.add(1, credit=3)
    rig.grants()
    crash = rig.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=2)
    assert crash == Crash(held=3, handed_over=2, failed="")
    rig.add(2, credit=3)
    assert rig.dispatcher.remove_consumer(2, ConsumerExit.CLOSED) is None


@pytest.mark.parametrize("per_block", [1, 3, 8])
def test_suspects_wait_for_earlier_messages_of_their_key_that_are_suspect_no_more(per_block: int) -> None:
    keys = KeysRig(["a"] * 8, per_block)
    keys.add(1)
    assert keys.entries() == {1: list(range(8))}
    keys.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=8)
    keys.add(2)
    assert keys.entries() == {2: [0, 1, 2, 3]}
    # The first one was only cut off: it comes back with all it had, of which half is another's now.
    held = [(1, ref.first_entry_id, ((0, ref.messages),)) for ref in keys.rig.refs]
    back = ConsumerSpec(1, "c1", ConsumerType.KeyShared)
    keys.dispatcher.attach_consumer(back, keys.rig.now_ms, held=held)
    assert keys.entries() == {}
    keys.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=8)
    assert keys.entries() == {}
    keys.dispatcher.remove_consumer(2, ConsumerExit.CRASHED, handed_over=0)
    keys.add(3, credit=3)
    assert keys.entries() == {3: [0, 1, 2]}, "no suspect yet, and no more than it has room for"
    keys.rig.report(3, 100, handed_over=3)
    assert keys.entries() == {3: [3]}
    keys.acknowledge(3, 0, 1, 2, 3)
    assert keys.entries() == {3: [4, 5]}
    keys.acknowledge(3, 4, 5)
    assert keys.entries() == {3: [6, 7]}


@pytest.mark.parametrize("per_block", [1, 3, 8])
def test_a_suspect_that_failed_comes_again_before_later_suspects_of_its_key(per_block: int) -> None:
    keys = KeysRig(["a"] * 8 + ["b"], per_block)
    keys.add(1)
    keys.entries()
    keys.dispatcher.remove_consumer(1, ConsumerExit.CRASHED, handed_over=8)
    keys.add(2)
    assert keys.entries() == {2: [8]}, "another key's goes out before suspects"
    keys.acknowledge(2, 8)
    assert keys.entries() == {2: [0, 1, 2, 3]}
    keys.nack(2, 2)
    keys.acknowledge(2, 0, 1, 3)
    assert keys.entries() == {2: [2]}
    keys.acknowledge(2, 2)
    assert keys.entries() == {2: [4, 5, 6, 7]}
