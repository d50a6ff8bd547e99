"""What a dispatcher leaves to its tracker, and takes in when it is due: against the index, at random."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from pulsar_ray.broker.subscription.delayed.delayed_tracker import delayed_rows_of
from pulsar_ray.broker.subscription.delayed.tracker_link import due_blocks
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.format.delivery_times import DeliveryTimes
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.managed_ledger.delayed.delayed_index import DelayedIndex
from pulsar_ray.managed_ledger.delayed.delayed_rows import NO_KEY
from pulsar_ray.model import row_sets
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position
from tests.unit.dispatch.validation import validate
from tests.unit.ledger.test_directory_owner import grant

LEDGER = 1
STRICT = DispatchSettings(delayed_delivery_is_strict=True, reattach_grace_ms=0)
CREDIT = 1 << 40


class World:
    """A log, a dispatcher with one consumer, and an index that is fed with the log."""

    def __init__(self, directory: Path, settings: DispatchSettings = STRICT) -> None:
        self.settings = settings
        self.directory = directory
        self.cursor = ManagedCursor(CursorSubscription("s"), Position(LEDGER, -1))
        self.index = self._opened()
        self.now_ms = 1_000_000
        self.due_ms: list[int] = []
        """By entry; 0 for one that is not delayed."""
        self.blocks: list[tuple[BlockRef, DeliveryTimes | None]] = []
        self.came: list[int] = []
        self.core: Dispatcher
        self.epoch = 0
        self.begin(ConsumerType.Shared)

    def _opened(self) -> DelayedIndex:
        return DelayedIndex.open(self.directory, Position(LEDGER, -1), acquire_lock=grant)

    def begin(self, kind: ConsumerType) -> None:
        """A dispatcher starts on the cursor."""
        self.epoch += 1
        self.cursor.consumers.clear()
        self.core = Dispatcher(self.cursor, self.settings, epoch=self.epoch, now_ms=self.now_ms)
        self.core.delayed.begin(self.now_ms, self.index.dropped)
        self.attach(kind)

    def attach(self, kind: ConsumerType) -> None:
        self.core.attach_consumer(ConsumerSpec(self.epoch, "c", kind), self.now_ms)
        self.core.set_credit(self.epoch, CREDIT, 0, 0)

    def publish(self, *due_ms: int) -> None:
        """One block of rows that are entries; 0 for a row that is not delayed."""
        first, count = len(self.due_ms), len(due_ms)
        ref = BlockRef(LEDGER, 0, 8 * first, 80, first, count, count, count > 1, is_marked=any(due_ms))
        times: DeliveryTimes | None = None
        if any(due_ms):
            times = due_ms[0] if len(set(due_ms)) == 1 else array("q", due_ms)
        self.blocks.append((ref, times))
        self.due_ms += due_ms
        self.cursor.set_ledgers([(LEDGER, len(self.due_ms) - 1)])

    def publish_some(self, chance: random.Random) -> None:
        delays = chance.choices((0, 0, 1, 50, 400, 3000), k=chance.choice((1, 2, 30)))
        self.publish(*(delay and self.now_ms + delay for delay in delays))

    def read(self, blocks: int = 1 << 30) -> None:
        """The dispatcher reads on."""
        self.core.delayed.now_ms = self.now_ms
        behind = [(ref, times) for ref, times in self.blocks if self._is_unread(ref)][:blocks]
        delays = [times for _, times in behind] if self.core.delayed.is_heeded else None
        self.core.delayed.has_met |= any(ref.is_marked for ref, _ in behind)
        read = ReadBlocks([ref for ref, _ in behind], None, delays)
        self.core.offer(read, self.core.reading_number)

    def _is_unread(self, ref: BlockRef) -> bool:
        return (LEDGER, ref.last_entry_id) >= self.core.intake.read_position

    def follow(self, messages: int = 1 << 30, *, is_answer_lost: bool = False) -> None:
        """One question to the tracker."""
        core = self.core
        core.delayed.now_ms = self.now_ms
        self.index.set_taken(core.delayed.taken, core.delayed.floor_ms)
        for ref, times in self.blocks:
            if (LEDGER, ref.last_entry_id) <= self.index.through:
                continue
            if self._is_unread(ref):
                break
            through = Position(LEDGER, ref.last_entry_id)
            if times is not None:
                self.index.add(delayed_rows_of(ref, times), through)
            else:
                self.index.through = through
        rows = self.index.due(core.delayed.due_by_ms, messages).tobytes()
        if rows and not is_answer_lost:
            blocks, last = due_blocks(rows)
            refs, sets = [ref for ref, _ in blocks], [rows for _, rows in blocks]
            core.take_due(ReadBlocks(refs), sets, last, core.reading_number)

    def dispatch(self) -> list[int]:
        """The entries that the consumer gets now."""
        entries = []
        for granted in self.core.dispatch(self.now_ms):
            first = granted.block.first_entry_id
            entries += [first + row for a, b in row_sets.ranges_of(granted.row_set) for row in range(a, b)]
        validate(self.core)
        self.came += entries
        return entries

    def acknowledge(self, *entries: int) -> None:
        self.core.acknowledge(self.epoch, [(LEDGER, entry, entry) for entry in entries])

    def disturb(self, chance: random.Random, held: list[int]) -> list[int]:
        """Let something happen, or nothing; returns what the consumer holds behind it."""
        what = chance.random()
        if what < 0.05:
            self.core.negative_acknowledge(self.epoch, [(LEDGER, entry, (), -1) for entry in held[:3]])
            return held[3:]
        if what < 0.08:
            self.begin(ConsumerType.Shared)
            return []
        if what < 0.1 and self.due_ms:
            self.core.seek(Position(LEDGER, chance.randrange(len(self.due_ms))))
            return []
        if what < 0.14:
            killed, self.index = self.index, self._opened()
            killed.close()  # its memory is lost, and its files go as those of a process that ends
        elif what < 0.22:
            self.index.flush()
        elif what < 0.3:
            self.index.work(Position(LEDGER, -1))
        return held


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "delayed")


def test_rows_that_are_not_due_are_left_and_cost_the_dispatcher_nothing(world: World) -> None:
    world.publish(0, world.now_ms + 500, 0, world.now_ms + 900)
    world.publish(*[world.now_ms + 500] * 10)
    world.read()
    assert world.dispatch() == [0, 2]
    world.acknowledge(0, 2)
    assert not world.core.blocks.index
    assert world.core.delayed.left_through == Position(LEDGER, 13)
    world.now_ms += 499
    world.follow()
    assert world.dispatch() == []
    world.now_ms += 1
    world.follow()
    assert sorted(world.dispatch()) == [1, *range(4, 14)]
    world.now_ms += 400
    world.follow()
    assert world.dispatch() == [3]


def test_what_comes_twice_is_delivered_once(world: World) -> None:
    world.publish(world.now_ms + 100, world.now_ms + 200)
    world.read()
    world.now_ms += 100
    world.follow(is_answer_lost=True)
    world.follow()
    taken = world.core.delayed.taken
    assert world.dispatch() == [0]
    world.core.delayed.taken = NO_KEY  # as if the tracker had not heard of it
    world.follow()
    assert world.dispatch() == []
    world.acknowledge(0)
    world.core.delayed.taken = NO_KEY
    world.follow()
    assert world.dispatch() == []
    assert world.core.delayed.taken == taken


def test_acknowledged_before_it_is_due_it_does_not_come(world: World) -> None:
    world.publish(*[world.now_ms + 100] * 3)
    world.read()
    world.acknowledge(1)
    world.now_ms += 100
    world.follow()
    assert world.dispatch() == [0, 2]


def test_what_comes_back_is_not_delayed_again(world: World) -> None:
    world.publish(world.now_ms + 100)
    world.read()
    world.now_ms += 100
    world.follow()
    assert world.dispatch() == [0]
    world.core.negative_acknowledge(1, [(LEDGER, 0, (), -1)])
    assert world.dispatch() == [0]


def test_a_successor_finds_in_the_log_what_was_taken_and_leaves_the_rest(world: World) -> None:
    world.publish(0, world.now_ms + 100, world.now_ms + 200)
    world.read()
    world.now_ms += 100
    world.follow()
    world.begin(ConsumerType.Shared)
    world.read()
    assert world.dispatch() == [0, 1]
    world.follow()
    assert world.dispatch() == []
    world.now_ms += 100
    world.follow()
    assert world.dispatch() == [2]


def test_a_seek_and_another_type_of_consumer_read_it_anew(world: World) -> None:
    world.publish(world.now_ms + 100, 0, world.now_ms + 10_000)
    world.read()
    world.now_ms += 100
    world.follow()
    assert sorted(world.dispatch()) == [0, 1]
    world.acknowledge(0, 1)
    world.core.seek(Position(LEDGER, 0))
    world.read()
    assert world.dispatch() == [0, 1]
    world.follow()
    assert world.dispatch() == []
    world.core.remove_consumer(world.epoch, ConsumerExit.CLOSED)
    world.attach(ConsumerType.Exclusive)
    world.read()
    assert world.dispatch() == [0, 1, 2]
    world.core.remove_consumer(world.epoch, ConsumerExit.CLOSED)
    world.attach(ConsumerType.KeyShared)
    assert world.core.intake.read_position == Position(LEDGER, 0)


def test_a_tick_early_unless_it_is_strict(tmp_path: Path) -> None:
    world = World(tmp_path / "delayed", DispatchSettings(reattach_grace_ms=0))
    world.publish(world.now_ms + 1000, world.now_ms + 1001)
    world.read()
    assert world.dispatch() == [0]
    world.now_ms += 1
    world.follow()
    assert world.dispatch() == [1]
    world.settings.delayed_delivery_enabled = False
    world.publish(world.now_ms + 1 << 40)
    world.read()
    assert world.dispatch() == [2]


@pytest.mark.parametrize("seed", range(8))
def test_each_message_comes_none_early_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Random publishing, lost answers, nacks, crashes of tracker and dispatcher, seeks back."""
    chance = random.Random(seed)
    world = World(tmp_path / "delayed")
    held: list[int] = []
    for _ in range(400):
        world.now_ms += chance.randrange(40)
        if chance.random() < 0.5:
            world.publish_some(chance)
        if chance.random() < 0.6:
            world.read(chance.choice((1, 3, 1 << 30)))
        if chance.random() < 0.6:
            world.follow(chance.choice((1, 10, 1 << 30)), is_answer_lost=chance.random() < 0.2)
        for entry in world.dispatch():
            assert world.due_ms[entry] <= world.now_ms, f"seed {seed}: {entry} came early"
            assert entry not in held, f"seed {seed}: {entry} is held already"
            held.append(entry)
        chance.shuffle(held)
        keep = chance.randrange(len(held) + 1)
        world.acknowledge(*held[keep:])
        del held[keep:]
        held = world.disturb(chance, held)
    world.now_ms += 10_000
    world.read()
    for _ in range(3):
        world.follow()
    world.acknowledge(*held, *world.dispatch())
    assert world.cursor.backlog() == 0, f"seed {seed}: {world.cursor.backlog()} have not come"
