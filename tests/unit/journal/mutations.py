"""Each rule of the journal is taken out of the real code by a mutation, which some history has to catch.

    python -m tests.unit.journal.mutations [HISTORIES] [RULE...]

prints for each rule in how many histories it was caught, and as what.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal import reading, store_life
from pulsar_ray.journal.life.checkpoints import Checkpoints
from pulsar_ray.journal.life.claims import Claims
from pulsar_ray.journal.life.restoring import Restoring
from pulsar_ray.journal.objects import (
    DATA,
    ENTRIES,
    NEXT,
    SEALED,
    Append,
    CatalogEntry,
    IndexObject,
    JournalObject,
    Place,
    catalog_key,
    fold_key,
    index_key,
    journal_key,
    journal_prefix,
    pack_index,
    pack_journal,
    unpack_entry,
    unpack_journal,
)
from pulsar_ray.journal.ownership import Ownership
from pulsar_ray.journal.partition_state import FileState, PartitionState, apply
from pulsar_ray.journal.receipts import Receipts
from pulsar_ray.journal.requests import Create, Delete, Get, ListKeys, Task, Wait, ask
from pulsar_ray.journal.shipping import Queued, Shipping
from pulsar_ray.journal.store_life import StoreLife
from tests.unit.journal.histories import World, run_many
from tests.unit.journal.history_disks import Disk
from tests.unit.journal.history_processes import Controller, Node, Store, Writer

Patch = pytest.MonkeyPatch
MUTATIONS: dict[str, tuple[str, Callable[[Patch], None]]] = {}


def mutation(rule: str, broken: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Enter a mutation under the name of its rule; `broken` says what the code does instead."""

    def enter(change: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTATIONS[rule] = (broken, change)
        return change

    return enter


@contextmanager
def mutated(rule: str) -> Iterator[None]:
    """Run the real code without a rule."""
    with Patch.context() as patch:
        MUTATIONS[rule][1](patch)
        yield


def caught(rule: str, seeds: range, stop_at: int = 1) -> tuple[int, Counter[str]]:
    """Run histories without a rule; return how many ran, and the violations that were found."""
    with mutated(rule):
        ran, found, _ = run_many(seeds, stop_at)
    return ran, found


class Overwrite(Create):
    """A plain PUT, which the object store of these histories takes too."""


def take_overwrites(patch: Patch) -> None:
    create = World.create

    def created(self: World, wanted: Create) -> str:
        if isinstance(wanted, Overwrite):
            self.objects.pop(wanted.key, None)
        return create(self, wanted)

    patch.setattr(World, "create", created)


# ---- writing and reading a journal


@mutation("a seal is create-only", "a seal is a plain PUT")
def _(patch: Patch) -> None:
    take_overwrites(patch)

    def read_or_close(store: str, place: Place, closing: JournalObject | None) -> Task[JournalObject | None]:
        key = journal_key(store, place)
        stored = yield from ask(Get(key))
        if stored is None and closing is not None:
            yield from ask(Overwrite(key, pack_journal(closing)))
            return closing
        return None if stored is None else unpack_journal(key, stored)

    patch.setattr(reading, "_read_or_close", read_or_close)


@mutation("'exists already' is told by the nonce", "'exists already' is taken for one's own PUT")
def _(patch: Patch) -> None:
    def is_own(found: bytes, body: bytes) -> bool:
        try:
            unpack_journal("journal", body)
        except JournalDamaged:
            return found == body
        return True

    patch.setattr(reading, "is_own", is_own)


@mutation("receipts go by the prefix", "a receipt is given for any object that is there")
def _(patch: Patch) -> None:
    completed = Shipping.completed

    def any_completed(self: Shipping, number: int) -> list[Queued]:
        turns = [item.turn for item in self._flying.get(number, ())]
        durable = completed(self, number)
        self.shipped = max([self.shipped, *turns])
        return durable

    patch.setattr(Shipping, "completed", any_completed)


@mutation("a life that meets an end is over", "an owner that finds its number taken uses the next one")
def _(patch: Patch) -> None:
    def put(self: Shipping, number: int, appends: tuple[Append, ...]) -> Task[list[Queued]]:
        batch = self._flying[number]
        body = pack_journal(JournalObject(self._nonce(), DATA, self.life, appends))
        durable: list[Queued] = []
        while True:
            key = journal_key(self.store, Place(self.life, number))
            if (yield from reading.create(key, body)) is None:
                return durable + self.completed(number)
            self._flying[number] = []
            durable += self.completed(number)
            number, self.next_number = self.next_number, self.next_number + 1
            self._flying[number] = batch

    patch.setattr(Shipping, "_put", put)


@mutation("objects behind a seal are never read", "late objects behind a seal are read")
def _(patch: Patch) -> None:
    walk_from = reading._walk_from

    def behind(
        store: str, place: Place, states: dict[str, PartitionState], closing: JournalObject | None
    ) -> Task[Any]:
        found, wrong = yield from walk_from(store, place, states, closing)
        if closing is not None or not found.is_sealed:
            return found, wrong
        place = Place(found.place.life, found.place.number + 1)
        while (stored := (yield from ask(Get(journal_key(store, place))))) is not None:
            for append in unpack_journal(journal_key(store, place), stored).appends:
                try:
                    apply(states, append)
                except JournalDamaged as error:
                    wrong = wrong or error
            place = Place(place.life, place.number + 1)
        return reading.Walk(states, place, True, False, -1), wrong

    patch.setattr(reading, "_walk_from", behind)


@mutation(
    "a restore reads again up to the seal", "a restore reads the names that were listed before the seal"
)
def _(patch: Patch) -> None:
    take_over, read_or_close = Controller.take_over, reading._read_or_close
    known: dict[str, set[str]] = {}

    def listed_first(self: Controller, partition: str, owner: CatalogEntry) -> Generator[Any, Any, None]:
        if owner.store not in known:
            names = yield from ask(ListKeys(journal_prefix(owner.store)))
            known[owner.store] = set(names)
        yield from take_over(self, partition, owner)

    def only_known(store: str, place: Place, closing: JournalObject | None) -> Task[JournalObject | None]:
        is_known = closing is not None or journal_key(store, place) in known.get(
            store, {journal_key(store, place)}
        )
        if is_known:
            return (yield from read_or_close(store, place, closing))
        return JournalObject(b"", SEALED, 0)

    patch.setattr(Controller, "take_over", listed_first)
    patch.setattr(reading, "_read_or_close", only_known)
    begin_anew(patch, known.clear)


def begin_anew(patch: Patch, forget: Callable[[], None]) -> None:
    """Forget what a mutation remembers when a history begins."""
    init = World.__init__

    def initialize(self: World, seed: int) -> None:
        forget()
        init(self, seed)

    patch.setattr(World, "__init__", initialize)


@mutation("who reads or seals looks again", "the newest index is not looked at again behind the end")
def _(patch: Patch) -> None:
    patch.setattr(reading, "has_passed", lambda index, place: False)


# ---- lives


def started(self: StoreLife, closing: JournalObject | None, first: Callable[[Place], int]) -> Task[None]:
    """Start a life as the real code does, except for where it goes on."""
    found = yield from reading.walk(self.store, closing)
    if found.is_sealed or found.is_foreign or (yield from self._lacks(found.states)):
        self._depose(is_set_aside=True)
        return
    self.checkpoints.index_number = found.index_number
    self.mirror.update(found.states)
    self.shipping.next_number = self.shipping.prefix = first(found.place)
    for state in self.mirror.values():
        for file in state.files.values():
            file.tail = None
    for partition in sorted(self.directory.partitions()):
        self.directory.recover(partition)
        yield from self._ship_missing(partition)
        self._take_told(partition)
    yield from self.until_shipped()
    yield from self.ownership.read()
    self.is_ready = True
    self.settle()


@mutation("a life is raised", "a new process goes on in the sequence of the former one")
def _(patch: Patch) -> None:
    init = Store.__init__

    def same_life(self: Store, world: World, node: Node) -> None:
        node.disk.life = max(0, node.disk.life - 1)
        init(self, world, node)

    patch.setattr(Store, "__init__", same_life)
    patch.setattr(StoreLife, "start", lambda self: started(self, None, lambda place: place.number))


def one_sequence(patch: Patch, *, has_void: bool, skips: bool) -> None:  # noqa: C901
    """Let all lives of a store write into one sequence."""

    def walk_from(
        store: str, place: Place, states: dict[str, PartitionState], closing: JournalObject | None
    ) -> Task[Any]:
        wrong: JournalDamaged | None = None
        sealed, foreign, highest = False, False, 0
        while True:
            item = yield from reading._read_or_close(store, place, closing)
            if item is None or (closing is not None and item.nonce == closing.nonce):
                sealed = closing is not None and closing.kind == SEALED
                break
            sealed, foreign = item.kind == SEALED, reading.is_foreign(item.life, closing)
            if sealed or foreign:
                break
            is_void, highest = has_void and item.life < highest, max(highest, item.life)
            for append in () if is_void else item.appends:
                try:
                    apply(states, append)
                except JournalDamaged as error:
                    wrong = wrong or error
            place = Place(0, place.number + 1)
        return reading.Walk(states, place, sealed, foreign, -1), wrong

    def put(self: Shipping, number: int, appends: tuple[Append, ...]) -> Task[list[Queued]]:
        batch = self._flying[number]
        body = pack_journal(JournalObject(self._nonce(), DATA, self.life, appends))
        durable: list[Queued] = []
        while True:
            key = journal_key(self.store, Place(0, number))
            other = yield from reading.create(key, body)
            if other is None:
                return durable + self.completed(number)
            taken = unpack_journal(key, other)
            if not skips or taken.kind == SEALED or taken.life >= self.life:
                self.depose()
                return durable
            self._flying[number] = []
            durable += self.completed(number)
            number, self.next_number = self.next_number, self.next_number + 1
            self._flying[number] = batch

    def start(self: StoreLife) -> Task[None]:
        closing = JournalObject(self.nonce(), NEXT, self.life)
        yield from started(self, closing, lambda place: place.number + 1)

    def look(self: StoreLife) -> Task[None]:
        number = self.shipping.next_number
        if self.shipping.prefix == number:
            key = journal_key(self.store, Place(0, number))
            stored = yield from ask(Get(key))
            is_there = stored is not None and self.shipping.next_number == number
            if is_there and unpack_journal(key, stored).kind == SEALED:
                self._depose()
                return
        yield from self.ownership.read()
        self.settle()

    patch.setattr(reading, "_walk_from", walk_from)
    patch.setattr(Shipping, "_put", put)
    patch.setattr(StoreLife, "start", start)
    patch.setattr(StoreLife, "look", look)
    patch.setattr(Checkpoints, "_start", lambda self: Place(0, self._shipping.prefix))


@mutation("a sequence for each life", "one sequence for all lives, void if a higher life is before it")
def _(patch: Patch) -> None:
    one_sequence(patch, has_void=True, skips=True)


@mutation("a sequence for each life, restarting", "the same, and at a taken number all begins anew")
def _(patch: Patch) -> None:
    one_sequence(patch, has_void=True, skips=False)


@mutation("a sequence for each life, without void", "one sequence, where also a former life's objects count")
def _(patch: Patch) -> None:
    one_sequence(patch, has_void=False, skips=True)


@mutation("a directory is compared", "a store does not look whether it has what its journal has")
def _(patch: Patch) -> None:
    def lacks(self: StoreLife, states: dict[str, PartitionState]) -> Task[bool]:
        yield from ()
        return False

    patch.setattr(StoreLife, "_lacks", lacks)


@mutation("a later life is looked for", "a new life does not look whether the journal knows a later one")
def _(patch: Patch) -> None:
    patch.setattr(reading, "is_foreign", lambda life, closing: False)


@mutation("synced here first", "appends are shipped before they are synced here")
def _(patch: Patch) -> None:
    def synced(self: Writer, append: Append, is_listed: bool) -> Generator[Any, Any, None]:
        self.ship(append, is_listed)
        yield Wait(self.world.disk_time)
        if self.is_there:
            self.copy.synced[append.file] = append.end

    patch.setattr(Writer, "synced", synced)


@mutation("nothing is served before it is shipped", "a new life serves what it recovered at once")
def _(patch: Patch) -> None:
    until_shipped = StoreLife.until_shipped

    def at_once(self: StoreLife) -> Task[None]:
        if self.is_ready:
            yield from until_shipped(self)

    patch.setattr(StoreLife, "until_shipped", at_once)


@mutation("logs are shipped before cursors", "a new life ships cursors before the logs")
def _(patch: Patch) -> None:
    in_order = store_life.in_order
    patch.setattr(store_life, "in_order", lambda files: in_order(files)[::-1])


# ---- index and deletion


@mutation("journals go behind an index", "journal objects are deleted before the index is durable")
def _(patch: Patch) -> None:
    write_index = Checkpoints._write_index

    def early(self: Checkpoints, index: IndexObject) -> Task[bool]:
        yield from self._clear_before(index.start)
        return (yield from write_index(self, index))

    patch.setattr(Checkpoints, "_write_index", early)


@mutation("an index is create-only", "one index object is written over")
def _(patch: Patch) -> None:
    take_overwrites(patch)

    def write_index(self: Checkpoints, index: IndexObject) -> Task[bool]:
        yield from ask(Overwrite(index_key(self._shipping.store, 0), pack_index(index)))
        return True

    patch.setattr(Checkpoints, "_write_index", write_index)


@mutation("an index tells the shipped prefix", "an index tells the files as they are")
def _(patch: Patch) -> None:
    def as_they_are(self: Checkpoints) -> dict[str, PartitionState]:
        states, directory = {}, self._uploads._directory
        for partition in directory.partitions():
            known = self._mirror.get(partition)
            term = directory.term(partition)
            state = PartitionState(term, directory.left(partition))
            for name, length in directory.lengths(partition).items():
                same = known.files.get(name) if known is not None and known.term == term else None
                state.files[name] = FileState(list(same.pieces) if same else [], length, None)
            states[partition] = state
        return states

    patch.setattr(Checkpoints, "mirror_copy", as_they_are)


@mutation("that files are gone is shipped first", "segments are deleted before that is shipped")
def _(patch: Patch) -> None:
    gone = StoreLife.gone

    def early(self: StoreLife, now: float, partition: str, files: Sequence[str]) -> None:
        gone(self, now, partition, files)
        self._tasks.append(self.clearing.files(partition, tuple(files)))

    patch.setattr(StoreLife, "gone", early)


@mutation("recovery deletes nothing shipped", "the recovery of a directory deletes what its front says")
def _(patch: Patch) -> None:
    recover = Disk.recover

    def trimming(self: Disk, partition: str) -> None:
        recover(self, partition)
        copy = self.copies[partition]
        if trimmed := copy.before(copy.front()):
            self.unlink_files(partition, tuple(trimmed))

    patch.setattr(Disk, "recover", trimming)


# ---- writers that outlive their store's process


@mutation("only its owner says that a file goes", "what no manifest lists yet is taken for removed")
def _(patch: Patch) -> None:
    patch.setattr(Disk, "has", lambda self, partition, file: file in self.copies[partition].listed())


@mutation("what goes waits for the journal", "a life that begins removes at once what it is told as gone")
def _(patch: Patch) -> None:
    gone = StoreLife.gone

    def at_once(self: StoreLife, now: float, partition: str, files: Sequence[str]) -> None:
        if partition in self._known:
            gone(self, now, partition, files)
        else:
            self.directory.unlink_files(partition, tuple(files))

    patch.setattr(StoreLife, "gone", at_once)


@mutation("what was told is shipped first", "what was told to a life that begins is queued once it serves")
def _(patch: Patch) -> None:
    take_told, begin_told = StoreLife._take_told, StoreLife._begin_told

    def later(self: StoreLife, partition: str) -> None:
        if self.is_ready:
            take_told(self, partition)

    def all_told(self: StoreLife) -> None:
        begin_told(self)
        for partition in sorted(self._known):
            take_told(self, partition)

    patch.setattr(StoreLife, "_take_told", later)
    patch.setattr(StoreLife, "_begin_told", all_told)


@mutation("taken back by a life that is ready", "a partition that left is opened by a life that begins")
def _(patch: Patch) -> None:
    def take_back(self: StoreLife, partition: str) -> Task[str]:
        if self._is_left(partition) and partition in self.mirror and not self.mirror[partition].left:
            yield from self.depart(partition)
        return (yield from self.take(partition))

    patch.setattr(StoreLife, "take_back", take_back)


# ---- owners


@mutation("an owner is decided first", "the new owner serves before its catalog entry is decided")
def _(patch: Patch) -> None:
    claim = Claims.claim
    lives: dict[Claims, StoreLife] = {}
    init = StoreLife.__post_init__

    def known(self: StoreLife, inline_bytes: int) -> None:
        init(self, inline_bytes)
        lives[self.claims] = self

    def hasty(self: Claims, partition: str) -> Task[None]:
        yield from self._ownership.read()
        if self.may_claim(partition) and partition not in lives[self].serving:
            lives[self]._serve(partition)
        yield from claim(self, partition)

    patch.setattr(StoreLife, "__post_init__", known)
    patch.setattr(Claims, "claim", hasty)
    begin_anew(patch, lives.clear)


@mutation(
    "an entry reads all before it", "a catalog entry is made without looking what was decided before it"
)
def _(patch: Patch) -> None:
    may_claim = Claims.may_claim

    def hasty(self: Claims, partition: str) -> bool:
        if may_claim(self, partition):
            return True
        is_here = partition in self._directory.partitions() and self._store not in self._ownership.sealed
        return is_here and self._ownership.owner(partition).store != self._store

    patch.setattr(Claims, "may_claim", hasty)


@mutation("a move ships all", "a move does not wait until all is shipped")
def _(patch: Patch) -> None:
    has_left, restore, leave = PartitionState.has_left, Restoring.restored, Store.leave
    hasty: set[str] = set()
    now: list[bool] = [False]

    def hasty_leave(self: Store, partition: str, target: Node) -> Generator[Any, Any, None]:
        hasty.add(partition)
        life = target.process.life
        target.process.begin(life.adopt(partition, self.life.ownership.owner(partition)))
        yield from leave(self, partition, target)
        hasty.discard(partition)

    def restored(self: Restoring, partition: str, source: CatalogEntry) -> Generator[Any, Any, Any]:
        task, answer = restore(self, partition, source), None
        while True:
            now[0] = partition in hasty
            try:
                wanted = task.send(answer)
            except StopIteration as end:
                return end.value
            finally:
                now[0] = False
            answer = yield wanted

    patch.setattr(Store, "leave", hasty_leave)
    patch.setattr(Restoring, "restored", restored)
    patch.setattr(PartitionState, "has_left", lambda self, term: now[0] or has_left(self, term))
    begin_anew(patch, hasty.clear)


@mutation("a leave counts for its term", "a partition that was left counts as left when it has come back")
def _(patch: Patch) -> None:
    install = Disk.install

    def left_for_ever(self: Disk, partition: str, term: int) -> None:
        is_left = partition in self.copies and self.copies[partition].is_left
        install(self, partition, term)
        self.copies[partition].is_left = is_left

    patch.setattr(Disk, "install", left_for_ever)


@mutation("a later term is not replaced", "a store adopts a partition that it holds in a later term")
def _(patch: Patch) -> None:
    patch.setattr(Restoring, "is_newer", lambda self, partition, source: False)


@mutation("a term has its own ledgers", "ledger numbers go on from the restored manifest")
def _(patch: Patch) -> None:
    patch.setattr(Writer, "lowest_ledger", property(lambda self: 1 + max(self.copy.named(), default=0)))


@mutation("asynchronous receipts are bounded", "they are given however old the oldest unshipped one is")
def _(patch: Patch) -> None:
    patch.setattr(Receipts, "is_behind", lambda self, now: False)


# ---- snapshots of the catalog


@mutation("entries go behind a snapshot", "the catalog's entries are deleted before the snapshot is there")
def _(patch: Patch) -> None:
    snapshot = Ownership.snapshot

    def early(self: Ownership) -> Task[None]:
        if self._due is not None:
            names = yield from ask(ListKeys(ENTRIES))
            yield Delete(tuple(name for name in names if name < catalog_key(self._due.length)))
        yield from snapshot(self)

    patch.setattr(Ownership, "snapshot", early)


@mutation("every fold is there", "only the fold of the newest snapshot is written")
def _(patch: Patch) -> None:
    fold = Ownership._fold

    def newest(self: Ownership, length: int) -> Task[None]:
        others = Ownership(entries_of_a_snapshot=length)
        yield from fold(others, length)

    patch.setattr(Ownership, "_fold", newest)


@mutation("an entry counts when it was looked for its fold", "entries count as soon as they are read")
def _(patch: Patch) -> None:
    def read(self: Ownership) -> Task[None]:
        while True:
            first, end = self.length, self._end_of_fold(self.length)
            stored = yield from ask(Get(catalog_key(first)))
            if stored is not None and self.length == first:
                self._add(unpack_entry(catalog_key(first), stored))
                if self.length == end:
                    self._due = self._as_snapshot()
            elif stored is None:
                if (yield from ask(Get(fold_key(end)))) is None:
                    return
                yield from self._read_snapshot()

    patch.setattr(Ownership, "read", read)


def main(arguments: list[str]) -> int:
    """Print the table of mutations; return 1 if one was not caught."""
    most, rules = int((arguments or ["2000"])[0]), arguments[1:] or list(MUTATIONS)
    missed = 0
    for rule in rules:
        ran, found = caught(rule, range(most), stop_at=3)
        missed += not found
        what = "; ".join(sorted({each.rpartition(" (seed")[0] for each in found})) or "NOT CAUGHT"
        print(f"{rule} | {MUTATIONS[rule][0]} | {found.total()} in {ran} | {what}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
