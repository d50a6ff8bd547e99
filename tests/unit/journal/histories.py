"""Histories of stores, controllers and an object store under faults, through the journal's real classes.

    python -m tests.unit.journal.histories [HISTORIES] [FIRST_SEED]

What is judged, for each history:
- synchronous: what was confirmed, or shown, is in every later owner's log; acknowledgments are not undone
- asynchronous: a takeover loses an end of what was confirmed, no more than the lag bound; a restart nothing
- a position has one content for ever, a term has one store; a cursor is never beyond its log, nor behind what
  nobody consumed; what was deleted stays deleted
- when the faults are over each partition is served by one store; also when all disks are lost then
"""

from __future__ import annotations

import heapq
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from pulsar_ray.errors import PulsarException, ServiceUnitNotReady
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.journal import store_life
from pulsar_ray.journal.objects import (
    Append,
    CatalogEntry,
    catalog_key,
    ledger_of,
    piece_key,
    unpack_entry,
    unpack_piece,
)
from pulsar_ray.journal.ownership import NOBODY, Ownership, first_ledger
from pulsar_ray.journal.reading import walk
from pulsar_ray.journal.receipts import Receipts
from pulsar_ray.journal.requests import (
    CREATED,
    EXISTS,
    UNKNOWN,
    Create,
    Delete,
    Get,
    ListKeys,
    Shipped,
    Wait,
)
from pulsar_ray.journal.shipping import Cut
from pulsar_ray.journal.store_life import Deposed, Serve, StoreLife

At = tuple[int, int]
Pieces = list[tuple[int, int, int]]
OPEN, END, FRONT = range(3)
MANIFEST, CURSOR, LOG = struct.Struct(">III"), struct.Struct(">II"), struct.Struct(">Q")


class Violation(Exception):
    """A promise of the journal does not hold."""


class Copy:
    """A partition in a directory: a manifest, a cursor's log and the ledgers, each of whole records."""

    def __init__(self, term: int, files: dict[str, bytearray] | None = None) -> None:
        self.term, self.is_left = term, False
        self.files = files if files is not None else {}
        self.files.setdefault("manifest", bytearray())
        self.files.setdefault("cursor", bytearray())
        self.synced: dict[str, int] = {}
        self.away: dict[str, Pieces] = {}
        """Files that are only in the object store."""
        self.read_away: Callable[[str, Pieces], bytes] = lambda _file, _pieces: b""

    def clone(self) -> Copy:
        copy = Copy(self.term, {f: bytearray(b) for f, b in self.files.items()})
        copy.away, copy.read_away = dict(self.away), self.read_away
        copy.synced, copy.is_left = dict(self.synced), self.is_left
        return copy

    def told(self, kind: int) -> list[tuple[int, int]]:
        return [(a, b) for k, a, b in MANIFEST.iter_unpack(self.files["manifest"]) if k == kind]

    def front(self) -> int:
        return max([0] + [a for a, _ in self.told(FRONT)])

    def ledgers(self) -> list[int]:
        return [a for a, _ in self.told(OPEN) if a >= self.front()]

    def cursor(self) -> At:
        stored = self.files["cursor"]
        if not stored:
            return (0, -1)
        ledger, entry = CURSOR.unpack(stored[-CURSOR.size :])
        return ledger, entry - 1

    def entries(self, ledger: int) -> list[int]:
        file = f"{ledger}-0"
        stored = self.files.get(file)
        if stored is None and (pieces := self.away.get(file)) is not None:
            return [c for (c,) in LOG.iter_unpack(self.read_away(file, pieces))]
        return [c for (c,) in LOG.iter_unpack(bytes(stored or b""))]

    def log(self) -> list[tuple[At, int]]:
        ends = dict(self.told(END))
        return [((i, k), c) for i in self.ledgers() for k, c in enumerate(self.entries(i)[: ends.get(i)])]

    def lacks_pieces(self) -> bool:
        """Whether pieces of files that are only in the object store are gone."""
        away = {file: self.read_away(file, pieces) for file, pieces in self.away.items()}
        return any(len(data) < self.closed().get(file, 0) for file, data in away.items())

    def recover(self) -> None:
        for file, data in self.files.items():  # an object may have ended within a record
            size = {"manifest": MANIFEST.size, "cursor": CURSOR.size}.get(file, LOG.size)
            del data[len(data) // size * size :]
        ended, listed = dict(self.told(END)), [f"{a}-0" for a, _ in self.told(OPEN)]
        self.files = {f: b for f, b in self.files.items() if ledger_of(f) is None or f in listed}
        for i in self.ledgers():
            if i not in ended:
                self.files["manifest"] += MANIFEST.pack(END, i, len(self.entries(i)))
        self.sync()

    def sync(self) -> None:
        self.synced = {f: len(b) for f, b in self.files.items()}

    def before(self, front: int) -> list[str]:
        """Return the ledgers' files here that are before a front."""
        here = [*self.files, *self.away]
        return [file for file in here if (i := ledger_of(file)) is not None and i < front]

    def closed(self) -> dict[str, int]:
        return {f"{a}-0": b * LOG.size for a, b in self.told(END) if a >= self.front()}


class Disk:
    """A store's directory, as the journal sees it."""

    def __init__(self, world: World) -> None:
        self.world, self.store, self.life = world, f"s{world.name():06d}", 0
        self.copies: dict[str, Copy] = {}
        self.staged: dict[str, dict[str, bytearray]] = {}
        self.staged_away: dict[str, dict[str, Pieces]] = {}
        self.coming_back: dict[tuple[str, str], bytearray] = {}

    def backup(self) -> Disk:
        disk = Disk(self.world)
        disk.store, disk.life = self.store, self.life
        disk.copies = {p: c.clone() for p, c in self.copies.items()}
        return disk

    def power_cut(self) -> None:
        rng = self.world.rng
        for copy in self.copies.values():
            for file, data in copy.files.items():
                size = {"manifest": MANIFEST.size, "cursor": CURSOR.size}.get(file, LOG.size)
                kept, most = min(copy.synced.get(file, 0), len(data)) // size, len(data) // size
                del data[rng.choice((kept, most, rng.randint(kept, most))) * size :]
            records = list(MANIFEST.iter_unpack(bytes(copy.files["manifest"])))
            for n, (k, a, b) in enumerate(records):  # an end is written when the entries are durable
                if k == END and a >= copy.front() and len(copy.entries(a)) < b:
                    del copy.files["manifest"][n * MANIFEST.size :]
                    break

    # ---- Directory
    def partitions(self) -> list[str]:
        return list(self.copies)

    def term(self, partition: str) -> int:
        return self.copies[partition].term

    def left(self, partition: str) -> set[int]:
        copy = self.copies[partition]
        return {copy.term} if copy.is_left else set()

    def lengths(self, partition: str) -> dict[str, int]:
        copy = self.copies[partition]
        found = {f: pieces[-1][1] for f, pieces in copy.away.items()}
        found |= {f: len(b) for f, b in copy.files.items()}
        trimmed = copy.before(copy.front())
        return {file: length for file, length in found.items() if file not in trimmed}

    def read(self, partition: str, file: str, start: int, end: int) -> bytes:
        copy = self.copies.get(partition)
        return bytes(copy.files.get(file, b"")[start:end]) if copy else b""

    def recover(self, partition: str) -> None:
        self.copies[partition].recover()

    def enter(self, partition: str, files: Iterable[str]) -> None:
        """It is in the journal since it was installed."""

    def leave_out(self, partition: str) -> None:
        raise AssertionError("nothing leaves the journal in a history")

    def is_dropped(self, partition: str) -> bool:
        return False

    def has(self, partition: str, file: str) -> bool:
        copy = self.copies[partition]
        return file in copy.files or file in copy.away

    def is_superseded(self, partition: str, file: str) -> bool:
        return False

    def unlink_files(self, partition: str, files: tuple[str, ...]) -> None:
        if copy := self.copies.get(partition):
            front = 1 + max((i for file in files if (i := ledger_of(file)) is not None), default=-1)
            self.world.truths[partition].deleted.append(((copy.term, self.life), front))
            for file in files:
                copy.files.pop(file, None)
                copy.away.pop(file, None)

    def offloaded(self, partition: str, file: str) -> Pieces | None:
        copy = self.copies.get(partition)
        return None if copy is None or file in copy.files else copy.away.get(file)

    def offload(self, partition: str, file: str, pieces: Pieces) -> bool:
        copy = self.copies.get(partition)
        if not pieces or copy is None or file not in copy.files or copy.closed().get(file) != pieces[-1][1]:
            return False
        self.world.counts["offloaded"] += 1
        copy.away[file] = pieces
        del copy.files[file]
        return True

    def closed(self, partition: str, is_staged: bool = False) -> dict[str, int]:
        if not is_staged:
            return self.copies[partition].closed() if partition in self.copies else {}
        manifest = bytes(self.staged[partition].get("manifest", b""))
        return Copy(0, {"manifest": bytearray(manifest[: len(manifest) // 12 * 12])}).closed()

    def stage_note(self, partition: str, file: str, pieces: Pieces) -> None:
        self.world.counts["by reference"] += 1
        self.staged_away.setdefault(partition, {})[file] = pieces

    def fetch_back(self, partition: str, file: str, start: int, data: Buffer) -> None:
        coming = self.coming_back.setdefault((partition, file), bytearray())
        del coming[len(coming) if start else 0 :]
        coming.extend(bytes(max(0, start - len(coming))))
        coming[start : start + len(data)] = data

    def end_fetching(self, partition: str, file: str) -> None:
        self.world.counts["fetched back"] += 1
        copy = self.copies[partition]
        copy.files[file] = self.coming_back.pop((partition, file))
        copy.synced[file] = len(copy.files[file])
        del copy.away[file]

    def read_away(self, partition: str, file: str, pieces: Pieces) -> bytes:
        stored = {(a, b): self.world.objects.get(piece_key(partition, file, a, b)) for a, b, _ in pieces}
        return b"".join(unpack_piece(file, data) for data in stored.values() if data is not None)

    def discard_staged(self, partition: str) -> None:
        self.staged.pop(partition, None)
        self.staged_away.pop(partition, None)

    def stage(self, partition: str, file: str, data: Buffer) -> None:
        self.staged.setdefault(partition, {}).setdefault(file, bytearray()).extend(data)

    def install(self, partition: str, term: int) -> None:
        copy = Copy(term, self.staged.pop(partition, {}))
        copy.away = self.staged_away.pop(partition, {})
        copy.read_away = partial(self.read_away, partition)
        copy.recover()
        self.copies[partition] = copy
        self.coming_back = {at: data for at, data in self.coming_back.items() if at[0] != partition}

    def note_left(self, partition: str) -> None:
        self.copies[partition].is_left = True

    def remove(self, partition: str, term: int) -> None:
        if partition in self.copies and self.copies[partition].term == term:
            del self.copies[partition]


class Node:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.backup: Disk | None = None
        self.process: Store


class Process:
    """It runs tasks: what they ask for goes through the world, with its faults."""

    def __init__(self, world: World, node: Node | None) -> None:
        self.world, self.node, self.alive, self.paused = world, node, True, False
        self.inbox: list[tuple[Any, Any]] = []

    def begin(self, task: Generator[Any, Any, Any], value: Any = None) -> None:
        if self.paused:
            self.inbox.append((task, value))
        elif self.alive:
            try:
                wanted = task.send(value)
            except StopIteration:
                wanted = None
            if wanted is not None and self.alive:
                self.world.carry_out(self, task, wanted)
            self.after_step()

    def after_step(self) -> None:
        pass

    def wake(self) -> None:
        self.paused, inbox, self.inbox = False, self.inbox, []
        for task, value in inbox:
            self.begin(task, value)


class Serving:
    def __init__(self, copy: Copy) -> None:
        self.visible, self.ledger, self.leaving = copy.log(), 0, False
        self.consumed = sum(at <= copy.cursor() for at, _ in self.visible)


class Store(Process):
    """A store's process: the partitions' side of it, around one life of the journal."""

    def __init__(self, world: World, node: Node) -> None:
        super().__init__(world, node)
        self.disk = node.disk
        self.serving: dict[str, Serving] = {}
        self.disk.life += 1
        cut = Cut(object_bytes=40, under_way=world.window, sync_seconds=0.0, seconds=0.0)
        self.unsynced = 0
        self.life = StoreLife(
            self.disk.store, self.disk.life, self.disk, world.nonce, cut, 24, world.ownership()
        )
        self.receipts: dict[str, Receipts] = {}
        """As each partition's process keeps them, by the turns that the life tells."""
        self.begin(self.run())

    def run(self) -> Generator[Any, Any, None]:
        self.life.advance(self.world.now)
        yield from self.life.start()
        while self.alive:
            yield Wait(self.world.rng.uniform(8, 16))
            yield from self.life.look()

    def after_step(self) -> None:
        if not self.alive or self.paused:
            return None
        tasks, actions = self.life.advance(self.world.now)
        for action in actions:
            if isinstance(action, Deposed):
                return self.depose(action)
            if isinstance(action, Serve):
                self.serve(action.partition)
        for partition in self.life.serving & self.receipts.keys():
            for receipt in self.receipts[partition].release(self.world.now, self.life.shipping.shipped):
                self.confirm(*receipt)
        for task in tasks:
            self.begin(task)
        return None

    def depose(self, action: Deposed) -> None:
        self.alive = False
        assert self.node is not None
        if action.is_set_aside:
            self.world.check_salvage(self.disk)
            self.node.disk = Disk(self.world)
        self.world.start_later(self.node)

    def serve(self, partition: str) -> None:
        self.world.check_serve(self, partition, self.disk.copies[partition])
        self.serving[partition] = Serving(self.disk.copies[partition])

    def confirm(self, partition: str, file: str, offset: int, record: bytes) -> None:
        if partition not in self.serving:
            return
        ledger = ledger_of(file)
        if ledger is not None:
            at, content = (ledger, offset // LOG.size), LOG.unpack(record)[0]
            self.serving[partition].visible.append((at, content))
            self.world.check_confirm(self, partition, at, content)
        elif file == "cursor" and self.world.sync:
            cursor, entry = CURSOR.unpack(record)
            self.world.check_receipt(self, partition, (cursor, entry - 1))

    # ---- writing and syncing
    def record(self, partition: str, file: str, record: bytes) -> None:
        data = self.disk.copies[partition].files.setdefault(file, bytearray())
        append = Append(partition, file, len(data), record)
        data += record
        self.unsynced += 1
        self.begin(self.sync(append))

    def sync(self, append: Append) -> Generator[Any, Any, None]:
        yield Wait(self.world.disk_time)
        self.unsynced -= 1
        copy = self.disk.copies.get(append.partition)
        if copy is None:
            return
        copy.synced[append.file] = append.end
        self.ship(append)
        kind, front, _ = MANIFEST.unpack(append.data) if append.file == "manifest" else (OPEN, 0, 0)
        if kind == FRONT:
            self.life.gone(self.world.now, append.partition, copy.before(front))

    def ship(self, append: Append) -> None:
        partition, is_log = append.partition, ledger_of(append.file) is not None
        turn = self.life.tell(self.world.now, partition, {append.file: append.end}, self.world.sync)
        if self.world.sync or is_log:
            receipts = self.receipts.setdefault(partition, Receipts(self.world.bound))
            receipt = (partition, append.file, append.offset, append.data)
            receipts.ask(turn, receipt, "sync" if self.world.sync else "async")

    def lowest_ledger(self, copy: Copy) -> int:
        return first_ledger(copy.term)

    def append(self, partition: str) -> None:
        serving, copy = self.serving[partition], self.disk.copies[partition]
        if self.world.rng.random() < 0.2:
            self.end_ledger(partition)
        if not serving.ledger:
            serving.ledger = 1 + max([self.lowest_ledger(copy)] + [a for a, _ in copy.told(OPEN)])
            self.record(partition, "manifest", MANIFEST.pack(OPEN, serving.ledger, 0))
        self.record(partition, f"{serving.ledger}-0", LOG.pack(self.world.name()))

    def end_ledger(self, partition: str) -> None:
        ledger, self.serving[partition].ledger = self.serving[partition].ledger, 0
        if ledger:
            count = len(self.disk.copies[partition].entries(ledger))
            self.record(partition, "manifest", MANIFEST.pack(END, ledger, count))

    def consume(self, partition: str) -> None:
        serving = self.serving[partition]
        if new := serving.visible[serving.consumed :][: self.world.rng.randint(1, 4)]:
            serving.consumed += len(new)
            self.world.truths[partition].acked.update(content for _, content in new)
            (ledger, entry), _ = new[-1]
            self.record(partition, "cursor", CURSOR.pack(ledger, entry + 1))

    def trim(self, partition: str) -> None:
        copy = self.disk.copies[partition]
        front = copy.cursor()[0]
        if (ledgers := copy.ledgers()) and ledgers[0] < front:
            self.record(partition, "manifest", MANIFEST.pack(FRONT, front, 0))

    def offload(self, partition: str) -> Generator[Any, Any, None]:
        """Leave closed ledgers to the object store, or bring them back."""
        copy = self.disk.copies[partition]
        if copy.away and self.world.aside.random() < 0.3:
            yield from self.life.offloading.fetch_back(partition, sorted(copy.away))
        else:
            yield from self.life.offloading.offload(partition, [f for f in copy.closed() if f in copy.files])

    def leave(self, partition: str, target: Store) -> Generator[Any, Any, None]:
        self.serving[partition].leaving = True
        self.end_ledger(partition)
        while self.unsynced:
            yield Wait(0.3)
        if partition not in self.disk.copies:
            return
        term = self.disk.term(partition)
        try:
            yield from self.life.depart(partition)
        except ServiceUnitNotReady:
            return  # it was taken over meanwhile
        self.world.truths[partition].left.add(term)
        self.serving.pop(partition, None)
        owner = self.life.ownership.owner(partition)
        target.begin(target.life.adopt(partition, owner))
        if self.world.rng.random() < 0.3:
            self.begin(self.life.adopt(partition, owner))  # it is broken off, and the source takes it back


class Controller(Process):
    def __init__(self, world: World, node: Node | None) -> None:
        super().__init__(world, node)
        self.ownership = world.ownership()
        self.absent: Counter[str] = Counter()
        self.begin(self.loop())

    def loop(self) -> Generator[Any, Any, None]:
        world = self.world
        while True:
            yield Wait(world.rng.uniform(5, 12))
            yield from self.ownership.read()
            for partition in world.truths:
                owner = self.ownership.owner(partition)
                served = world.seems_served(partition, owner.store)
                self.absent[partition] = 0 if served else self.absent[partition] + 1
                if owner == NOBODY:
                    self.give(partition, owner)
                elif self.absent[partition] > world.patience or world.rng.random() < world.suspicion:
                    self.absent[partition] = 0
                    yield from self.take_over(partition, owner)

    def give(self, partition: str, owner: CatalogEntry) -> None:
        targets = [
            s
            for s in self.world.stores()
            if s.alive
            and s.life.is_ready
            and not (s.disk.store == owner.store and owner.store in self.ownership.sealed)
        ]
        if targets:
            target = self.world.rng.choice(targets)
            target.begin(target.life.adopt(partition, owner))

    def take_over(self, partition: str, owner: CatalogEntry) -> Generator[Any, Any, None]:
        found = yield from walk(owner.store)
        if partition in found.states and found.states[partition].has_left(owner.term):
            return self.give(partition, owner)
        yield from store_life.seal(owner.store, self.ownership, self.world.nonce)
        self.world.counts["sealed"] += 1
        for each in self.world.truths:
            if self.ownership.owner(each).store == owner.store:
                self.give(each, self.ownership.owner(each))
        return None


class Served:
    def __init__(self, key: At, store: str, log: dict[At, int], front: At, cursor: At) -> None:
        self.key, self.store, self.log, self.front, self.cursor = key, store, log, front, cursor


class Truth:
    """What the world was told of one partition; a key is (term, life)."""

    def __init__(self) -> None:
        self.confirmed: dict[At, tuple[int, At, float, str]] = {}
        self.promised: dict[At, At] = {}
        self.shown: dict[At, int] = {}
        self.left: set[int] = set()
        """Terms whose owner had it leave, with all of it."""
        self.lost: set[At] = set()
        self.losses: dict[int, list[float]] = {}
        self.acked: set[int] = set()
        self.receipts: list[tuple[At, At]] = []
        self.deleted: list[tuple[At, int]] = []
        self.served: list[Served] = []
        self.last = -1.0


class World:
    """One history: faults for a while, then everything works, then all disks are lost."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now, self.turn, self.names = random.Random(seed), 0.0, 0, 0
        self.queue: list[tuple[float, int, Callable[[], object]]] = []
        choice = self.rng.choice
        self.sync, self.window, self.bound = (
            self.rng.random() < 0.6,
            choice((1, 2, 4, 8)),
            choice((4, 10, 25)),
        )
        self.loss, self.late, self.twice = choice((0, 0.03, 0.1)), choice((0.02, 0.1, 0.2)), choice((0, 0.1))
        self.disk_time, self.put_time = choice((0.1, 1, 4)), choice((1, 3, 8))
        self.traffic_rate, self.fault_rate = choice((0.7, 1.5)), choice((0.02, 0.04, 0.08))
        self.suspicion, self.patience = choice((0, 0.01, 0.05)), choice((2, 5, 10))
        self.aside = random.Random(seed)
        self.offloads = self.aside.choice((0, 0, 0.03, 0.15))
        self.moves, self.checkpoints = choice((0, 0.02, 0.05)), choice((0.03, 0.1))
        self.entries_of_a_snapshot = choice((1, 3, 8))
        self.objects: dict[str, bytes] = {}
        self.decided: list[CatalogEntry] = []
        self.outage, self.healed = False, False
        self.counts: Counter[str] = Counter()
        self.cut: set[Node] = set()
        self.truths = {f"p{n}": Truth() for n in range(choice((1, 2, 3)))}
        self.nodes = [Node(Disk(self)) for _ in range(choice((2, 3, 4)))]
        self.controllers = [Controller(self, None) for _ in range(choice((1, 2, 2)))]
        for node in self.nodes:
            node.process = Store(self, node)

    def name(self) -> int:
        self.names += 1
        return self.names

    def ownership(self) -> Ownership:
        return Ownership(entries_of_a_snapshot=self.entries_of_a_snapshot)

    def nonce(self) -> bytes:
        return self.name().to_bytes(8, "big")

    def after(self, delay: float, call: Callable[[], object]) -> None:
        self.turn += 1
        heapq.heappush(self.queue, (self.now + delay, self.turn, call))

    def stores(self) -> list[Store]:
        return [node.process for node in self.nodes]

    # ---- the object store
    def remote(self, wanted: Any) -> Any:
        if isinstance(wanted, Get):
            return self.objects.get(wanted.key)
        if isinstance(wanted, ListKeys):
            return sorted(k for k in self.objects if k.startswith(wanted.prefix))
        if isinstance(wanted, Delete):
            for key in wanted.keys:
                self.objects.pop(key, None)
            return None
        return self.create(wanted)

    def create(self, wanted: Create) -> str:
        if wanted.key in self.objects:
            return EXISTS
        self.objects[wanted.key] = wanted.body
        if wanted.key == catalog_key(len(self.decided)):
            self.decided.append(unpack_entry(wanted.key, wanted.body))
        return CREATED

    def when_shipped(self, process: Process, task: Any, wanted: Shipped) -> None:
        assert isinstance(process, Store)
        if process.life.shipping.shipped >= wanted.turn:
            self.after(0, lambda: process.begin(task))
        elif process.alive:
            self.after(0.5, lambda: self.when_shipped(process, task, wanted))

    def carry_out(self, process: Process, task: Any, wanted: Any) -> None:
        rng = self.rng
        if isinstance(wanted, Wait):
            return self.after(wanted.seconds, lambda: process.begin(task))
        if isinstance(wanted, Shipped):
            return self.when_shipped(process, task, wanted)
        if isinstance(wanted, Delete):
            for key in wanted.keys:
                self.after(rng.choice((0.3, rng.uniform(0, 60))), partial(self.objects.pop, key, None))
            return self.after(0, lambda: process.begin(task))
        luck, write = rng.random(), isinstance(wanted, Create)
        if self.outage or process.node in self.cut or luck < self.loss:
            return self.after(8, lambda: process.begin(task, UNKNOWN))
        if (
            write and luck < self.loss + self.late
        ):  # it arrives some time, perhaps long after; its answer does not
            late = rng.choice((1, rng.uniform(5, 20), rng.uniform(5, 150)))
            self.after(late, lambda: self.remote(wanted))
            return self.after(8, lambda: process.begin(task, UNKNOWN))

        def arrive() -> None:
            answer = self.remote(wanted)
            if luck > 1 - self.twice:
                answer = self.remote(wanted)  # something on the way sends it again
            self.after(rng.uniform(0.02, 0.3), lambda: process.begin(task, answer))

        return self.after(rng.uniform(0.2, self.put_time) if write else rng.uniform(0.02, 0.3), arrive)

    # ---- the checker
    def check_serve(self, store: Store, partition: str, copy: Copy) -> None:  # noqa: C901
        truth, log, front, key = (
            self.truths[partition],
            copy.log(),
            (copy.front(), 0),
            (copy.term, store.disk.life),
        )
        place, contents, cursor = dict(log), [c for _, c in log], max(copy.cursor(), (front[0], -1))
        is_restart = any(s.key[0] == copy.term for s in truth.served)
        was_left = copy.term - 1 in truth.left
        how = "restart" if is_restart else "move" if was_left else "takeover"
        self.counts[how] += 1
        if any(s.key[0] == copy.term and s.store != store.disk.store for s in truth.served):
            raise Violation("two stores own one term")
        if copy.lacks_pieces() and any(s.key[0] > copy.term for s in truth.served):
            # Late: a successor has brought these files back. Whoever reads here is told that they are gone.
            return
        if contents != sorted(set(contents)) or list(place) != sorted(place):
            raise Violation("a log is out of order, or has something twice")
        for at, content in log:
            if truth.shown.setdefault(at, content) != content:
                raise Violation("two contents at one position")
            if at <= copy.cursor() and content not in truth.acked:
                raise Violation("a cursor passes what nobody consumed")
        if copy.cursor() >= front and copy.cursor() not in place and copy.files["cursor"]:
            raise Violation("a cursor beyond its log")
        if any(k <= key and (deleted, 0) > front for k, deleted in truth.deleted):
            raise Violation("what was deleted is back")
        if any(k < key and receipt > cursor for k, receipt in truth.receipts):
            raise Violation("a confirmed acknowledgment is undone")
        if any(k < key and at >= front and at not in place for at, k in truth.promised.items()):
            raise Violation(f"what was shown is lost by a {how}")
        for at, (content, k, _, _) in truth.confirmed.items():
            if k < key and at not in place and at not in truth.lost:
                if at < front and content not in truth.acked:
                    raise Violation("what nobody consumed is deleted")
                if at >= front and (self.sync or how != "takeover"):
                    raise Violation(f"confirmed appends are lost by a {how}")
                if at >= front:
                    self.lose(truth, at, place)
        for at in place:
            truth.promised.setdefault(at, key)
        truth.served.append(Served(key, store.disk.store, place, front, cursor))

    def check_confirm(self, store: Store, partition: str, at: At, content: int) -> None:
        truth, key = self.truths[partition], (store.disk.copies[partition].term, store.disk.life)
        self.counts["confirmed"] += 1
        if truth.shown.setdefault(at, content) != content:
            raise Violation("two contents at one position")
        truth.confirmed[at] = (content, key, self.now, store.disk.store)
        for later in truth.served:
            if later.key > key and at not in later.log and at >= later.front and at not in truth.lost:
                if self.sync or later.key[0] == key[0]:
                    raise Violation("confirmed after somebody else took over without it")
                self.lose(truth, at, later.log)
        if (store.disk.store, key[0]) == self.deciding(partition):
            truth.last = self.now

    def check_receipt(self, store: Store, partition: str, cursor: At) -> None:
        truth, key = self.truths[partition], (store.disk.copies[partition].term, store.disk.life)
        truth.receipts.append((key, cursor))
        if any(s.key > key and s.cursor < cursor for s in truth.served):
            raise Violation("an acknowledgment confirmed too late")

    def lose(self, truth: Truth, at: At, log: dict[At, int]) -> None:
        _, (term, _), when, _ = truth.confirmed[at]
        truth.lost.add(at)
        losses = truth.losses.setdefault(term, [])
        losses.append(when)
        self.counts["lost, as allowed"] += 1
        if any(other > at and other[0] < first_ledger(term + 1) for other in log):
            raise Violation("a hole among confirmed appends")
        if max(losses) - min(losses) > self.bound:
            raise Violation("more was lost than the lag bound allows")

    def check_salvage(self, disk: Disk) -> None:
        for partition, copy in disk.copies.items():
            truth = self.truths[partition]
            for at, (content, key, _, store) in truth.confirmed.items():
                if at in truth.lost and (store, key[0]) == (disk.store, copy.term):
                    self.counts["salvaged"] += 1
                    if copy.entries(at[0])[at[1] : at[1] + 1] != [content]:
                        raise Violation("nothing to salvage")

    def deciding(self, partition: str) -> tuple[str, int]:
        found = [e for e in self.decided if e.kind == "owner" and e.partition == partition]
        return (found[-1].store, found[-1].term) if found else ("", 0)

    def settled(self, since: float) -> bool:
        return all(
            truth.last > since
            and [self.deciding(p)[0]] == [s.disk.store for s in self.stores() if s.alive and p in s.serving]
            for p, truth in self.truths.items()
        )

    # ---- faults and traffic
    def seems_served(self, partition: str, store: str) -> bool:
        return any(
            s.alive
            and not s.paused
            and s.node not in self.cut
            and s.disk.store == store
            and partition in s.serving
            for s in self.stores()
        )

    def start_later(self, node: Node) -> None:
        self.after(self.rng.uniform(1, 30), partial(self.wake_store, node))

    def rest(self) -> None:
        """Have a store that nothing lies in rest for a while."""
        if self.healed:
            return
        self.after(self.aside.expovariate(0.03), self.rest)
        owners = {self.deciding(partition)[0] for partition in self.truths}
        empty = [
            node
            for node in self.nodes
            if (store := node.process).alive
            and not (store.paused or store.serving or store.disk.copies or store.disk.store in owners)
        ]
        if empty and sum(store.alive for store in self.stores()) > 1:
            node = self.aside.choice(empty)
            self.counts["rest"] += 1
            node.process.alive = False
            self.after(self.aside.uniform(5, 120), partial(self.wake_store, node))

    def wake_store(self, node: Node) -> None:
        """Begin a store that does not run; what was left of an earlier process may come late."""
        if not node.process.alive:
            node.process = Store(self, node)

    def stop(self, node: Node, how: str) -> None:
        node.process.alive, old, node.backup = False, node.backup, node.disk.backup()
        if how == "backup" and old and self.sync:
            node.disk = old
        if how == "power":
            node.disk.power_cut()
        elif how == "lost":
            node.disk = Disk(self)
        self.start_later(node)

    def pause(self, process: Process) -> None:
        process.paused = True
        self.after(self.rng.uniform(5, 120), process.wake)

    def lose_all(self) -> None:
        for node in self.nodes:
            self.stop(node, "lost")
        for controller in self.controllers:
            controller.alive = False
        self.controllers = [Controller(self, None)]

    def traffic(self) -> None:
        rng, partition, what = self.rng, self.rng.choice(list(self.truths)), self.rng.random()
        self.after(rng.expovariate(self.traffic_rate), self.traffic)
        running = [s for s in self.stores() if s.alive and not s.paused]
        serving = [s for s in running if partition in s.serving and not s.serving[partition].leaving]
        for store in running:
            store.after_step()
        serving = [s for s in serving if s.alive]
        if serving and self.aside.random() < self.offloads:
            store = self.aside.choice(serving)
            store.begin(store.offload(partition))
        if what < self.checkpoints and running:
            store = rng.choice(running)
            store.begin(store.life.checkpoint())
        elif serving:
            store = rng.choice(serving)
            if what < 0.65:
                store.append(partition)
            elif what < 0.85:
                store.consume(partition)
            elif what < 1 - self.moves or self.healed:
                store.trim(partition)
            elif others := [s for s in running if s is not store]:
                store.begin(store.leave(partition, rng.choice(others)))

    def fault(self) -> None:
        if self.healed:
            return
        rng = self.rng
        kinds = (
            "crash crash power power lost backup pause pause cut cut outage controller controller-pause all"
        )
        self.after(rng.expovariate(self.fault_rate), self.fault)
        node, kind, controller = (
            rng.choice(self.nodes),
            rng.choice(kinds.split()),
            rng.choice(self.controllers),
        )
        self.counts[kind] += 1
        if kind in ("crash", "power", "lost", "backup"):
            self.stop(node, kind)
        elif "pause" in kind:
            self.pause(node.process if kind == "pause" else controller)
        elif kind == "cut":
            self.cut.add(node)
            self.after(rng.uniform(5, 80), lambda: self.cut.discard(node))
        elif kind == "outage":
            self.outage = True
            self.after(rng.uniform(3, 40), lambda: setattr(self, "outage", False))
        elif kind == "controller":
            controller.alive = False
            self.controllers = [c for c in self.controllers if c.alive] + [Controller(self, None)]
        elif rng.random() < 0.3:
            self.lose_all()

    def heal(self) -> None:
        self.healed, self.outage, self.cut = True, False, set()
        self.loss = self.late = self.suspicion = 0
        for process in [*self.stores(), *self.controllers]:
            process.wake()

    def run(self, faults_until: float = 220, deadline: float = 700) -> Counter[str]:
        self.after(1, self.traffic)
        self.after(20, self.fault)
        self.after(20, self.rest)
        since, looked, refounded = faults_until, 0.0, False
        while True:
            self.now, _, call = heapq.heappop(self.queue)
            try:
                call()
            except PulsarException as error:
                raise Violation(str(error)) from error
            if not self.healed and self.now > faults_until:
                self.heal()
            elif self.healed and self.now > looked + 5:
                looked = self.now
                if self.now > since + deadline:
                    raise Violation("no progress with everything up")
                if self.now > since + 20 and self.settled(since + 10):
                    if refounded:
                        return self.counts
                    since, refounded = self.now, True
                    self.lose_all()


def run_many(seeds: range, stop_at: int = 0) -> tuple[int, Counter[str], Counter[str]]:
    """Run histories; return how many ran, the violations, and what happened in all of them."""
    found: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    ran = 0
    for seed in seeds:
        ran += 1
        try:
            totals += World(seed).run()
        except Violation as violation:
            found[f"{violation} (seed {seed})"] += 1
            if found.total() == stop_at:
                break
    return ran, found, totals


if __name__ == "__main__":
    count, first = [int(a) for a in sys.argv[1:]] + [20_000, 0][len(sys.argv) - 1 :]
    ran, found, totals = run_many(range(first, first + count))
    print(ran, "histories", dict(found), dict(totals))
    sys.exit(1 if found else 0)
