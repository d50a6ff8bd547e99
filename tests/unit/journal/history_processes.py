"""The processes of a history: stores, writers of partitions with their sockets, and controllers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsar_ray.broker.serving.shipping_link import ASYNC, SYNC, ShippingLink
from pulsar_ray.errors import JournalDamaged, ServiceUnitNotReady
from pulsar_ray.journal import store_life
from pulsar_ray.journal.journal_door import JournalDoor
from pulsar_ray.journal.objects import Append, CatalogEntry, ledger_of
from pulsar_ray.journal.ownership import NOBODY
from pulsar_ray.journal.reading import walk
from pulsar_ray.journal.requests import Wait
from pulsar_ray.journal.shipping import Cut
from pulsar_ray.journal.store_life import Deposed, Serve, StoreLife
from pulsar_ray.journal.telling import Packets
from tests.unit.journal.history_disks import CURSOR, END, FRONT, HEADER, LOG, MANIFEST, OPEN, At, Copy, Disk

if TYPE_CHECKING:
    from tests.unit.journal.histories import World


class Node:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.backup: Disk | None = None
        self.process: Store
        self.writers: dict[str, Writer] = {}

    def writer(self, partition: str) -> Writer | None:
        """Return the process of a partition, None without one that can write."""
        writer = self.writers.get(partition)
        return writer if writer is not None and writer.is_there else None

    def end_writers(self) -> None:
        for writer in self.writers.values():
            writer.die()
        self.writers.clear()


class Process:
    """It runs tasks: what they ask for goes through the world, with its faults."""

    def __init__(self, world: World, node: Node | None) -> None:
        self.world, self.node, self.alive, self.paused = world, node, True, False
        self.inbox: list[tuple[Any, Any]] = []
        self.sockets: list[Socket] = []

    def begin(self, task: Generator[Any, Any, Any], value: Any = None) -> None:
        if self.paused:
            self.inbox.append((task, value))
        elif self.alive:
            try:
                wanted = task.send(value)
            except StopIteration:
                wanted = None
            except OSError:  # the disk: the task ends, and its process goes on
                wanted = None
            if wanted is not None and self.alive:
                self.world.carry_out(self, task, wanted)
            self.after_step()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in this process."""

        def once() -> Generator[Any, Any, None]:
            function(*arguments)
            yield from ()

        self.begin(once())

    def after_step(self) -> None:
        pass

    def wake(self) -> None:
        self.paused, inbox, self.inbox = False, self.inbox, []
        for task, value in inbox:
            self.begin(task, value)

    def die(self) -> None:
        """End at once; what was sent may still be read."""
        self.alive = False
        for each in self.sockets:
            each.close()


class Timer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """The part of an event loop that links and doors use, on the world's clock."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def time(self) -> float:
        return self.process.world.now

    def call_later(self, delay: float, function: Callable[..., object], *arguments: Any) -> Timer:
        timer = Timer()

        def due() -> None:
            if not timer.is_cancelled:
                self.process.call(function, *arguments)

        self.process.world.after(delay, due)
        return timer

    def add_reader(self, end: Socket, function: Callable[..., object], *arguments: Any) -> None:
        def read() -> None:
            if end.reader is read_later:  # else it was removed meanwhile
                function(*arguments)
                if end.incoming:
                    end.look()

        def read_later() -> None:
            self.process.call(read)

        end.reader = read_later
        end.look()

    def remove_reader(self, end: Socket) -> None:
        end.reader = None

    def remove_writer(self, end: Socket) -> None:
        """Everything that is sent finds room."""


class Socket:
    """One end of a connection within a node, where bytes lie for a while until they are read."""

    def __init__(self, process: Process) -> None:
        self.world = process.world
        self.number, self.is_open = self.world.name(), True
        self.incoming = bytearray()
        self.other: Socket | None = None
        self.reader: Callable[[], None] | None = None
        process.sockets.append(self)

    def fileno(self) -> int:
        return self.number if self.is_open else -1

    def setblocking(self, is_blocking: bool) -> None:
        assert not is_blocking

    def send(self, data: bytes) -> int:
        assert self.other is not None
        if not self.other.is_open:
            raise BrokenPipeError
        self.other.incoming += data
        self.other.look()
        return len(data)

    def recv(self, size: int) -> bytes:
        assert self.other is not None
        if not self.incoming and self.other.is_open:
            raise BlockingIOError
        data = bytes(self.incoming[:size])
        del self.incoming[:size]
        return data

    def look(self) -> None:
        """Have what is there read some time."""
        self.world.after(self.world.lateness(), self._read)

    def _read(self) -> None:
        if self.is_open and self.reader and (self.incoming or not (self.other and self.other.is_open)):
            self.reader()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            if self.other is not None:
                self.other.look()


class Listening:
    """The socket of a store's door."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.backlog: list[Socket] = []

    def connect(self, process: Process) -> Socket:
        near, far = Socket(process), Socket(self.store)
        near.other, far.other = far, near
        self.backlog.append(far)
        self.store.world.after(self.store.world.lateness(), lambda: self.store.call(self.store.door._accept))
        return near

    def accept(self) -> tuple[Socket, None]:
        return self.backlog.pop(0), None

    def close(self) -> None:
        for each in self.backlog:
            each.close()


class Runner:
    """A store's process runs what its door begins."""

    def __init__(self, store: Store) -> None:
        self.life, self._store = store.life, store

    def run(self, task: Any) -> Any:
        return task

    def begin(self, task: Any) -> None:
        self._store.begin(task)

    def nudge(self) -> None:
        self._store.after_step()


class Store(Process):
    """A store's process: one life of the journal, and its door for the partitions' processes."""

    def __init__(self, world: World, node: Node) -> None:
        super().__init__(world, node)
        self.home = node
        self.disk = node.disk
        self.disk.life += 1
        cut = Cut(object_bytes=40, under_way=world.window, sync_seconds=0.0, seconds=0.0)
        self.life = StoreLife(
            self.disk.store, self.disk.life, self.disk, world.nonce, cut, 24, world.ownership()
        )
        self.listening, loop = Listening(self), Loop(self)
        door: Any = JournalDoor(Path(), Runner(self), self.disk, loop)  # type: ignore[arg-type]
        self.door = door
        self.door._listening = self.listening
        self.ready_at = 0.0
        self.begin(self.run())

    def run(self) -> Generator[Any, Any, None]:
        self.life.advance(self.world.now)
        yield from self.life.start()
        self.ready_at = self.world.now
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
                self.world.open_later(self.home, action.partition, 0.0)
        self.door.answer()
        for task in tasks:
            self.begin(task)
        return None

    def depose(self, action: Deposed) -> None:
        self.die()
        self.home.end_writers()
        if action.is_set_aside:
            self.world.check_set_aside(self.disk)
            self.world.check_salvage(self.disk)
            self.home.disk = Disk(self.world)
        self.world.start_later(self.home)

    # ---- what others ask of it, whether it is ready or not
    def open(self, partition: str) -> Generator[Any, Any, None]:
        """Start the process of a partition that is here, unless it runs."""
        copy = self.disk.copies.get(partition)
        if (
            copy is None
            or copy.is_dropped
            or self.home.writer(partition) is not None
            or partition in self.world.leaving
        ):
            return
        if copy.is_left:
            self.world.counts["taking back"] += 1
            try:
                owner = yield from self.life.take_back(partition)
            except ServiceUnitNotReady:
                self.world.counts["not taken back yet"] += 1
                return
            except JournalDamaged:
                if partition in self.world.wanted():
                    raise
                return
            if owner != self.disk.store:
                return
        if partition in self.disk.copies and self.home.disk is self.disk:
            self.world.begin_writer(self.home, partition)

    def adopt(self, partition: str, owner: CatalogEntry) -> Generator[Any, Any, None]:
        """Take a partition over, as the life does."""
        try:
            yield from self.life.adopt(partition, owner)
        except JournalDamaged:
            if partition in self.world.wanted():  # else it was removed meanwhile
                raise

    def remove(self, partition: str) -> Generator[Any, Any, None]:
        """Remove a partition, as its owner's store is asked to once its process has ended."""
        yield from ()
        if (writer := self.home.writers.pop(partition, None)) is not None:
            writer.die()
        if partition in self.disk.copies:
            self.world.counts["removed"] += 1
            self.disk.mark_dropped(partition)
            self.life.drop(partition)

    def offload(self, partition: str) -> Generator[Any, Any, None]:
        """Leave closed ledgers to the object store, or bring them back."""
        copy = self.disk.copies.get(partition)
        if copy is None:
            return
        if copy.away and self.world.aside.random() < 0.3:
            yield from self.life.offloading.fetch_back(partition, sorted(copy.away))
        else:
            yield from self.life.offloading.offload(partition, [f for f in copy.closed() if f in copy.files])

    def leave(self, partition: str, target: Node) -> Generator[Any, Any, None]:
        writer = self.home.writer(partition)
        if writer is None or partition in self.world.leaving:
            return
        self.world.leaving.add(partition)
        try:
            yield from self.left(partition, writer, target)
        finally:
            self.world.leaving.discard(partition)
            writer.die()

    def left(self, partition: str, writer: Writer, target: Node) -> Generator[Any, Any, None]:
        writer.is_leaving = True
        writer.end_ledger()
        while writer.alive and writer.unsynced:
            yield Wait(0.3)
        if not writer.is_there:
            return
        writer.link.close()
        writer.die()
        term = self.disk.term(partition)
        try:
            yield from self.life.depart(partition)
        except ServiceUnitNotReady:
            self.world.counts["not left"] += 1
            return  # it was taken over meanwhile, or the store begins just now
        self.world.truths[partition].left.add(term)
        owner, at_target = self.life.ownership.owner(partition), target.process
        at_target.begin(at_target.adopt(partition, owner))
        if self.world.rng.random() < 0.3:
            # It is broken off, and the source takes it back.
            self.world.open_later(self.home, partition, self.world.aside.uniform(0, 30))


class Link(ShippingLink):
    """A link whose socket is the world's."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(Path(), 0, "", Loop(writer), writer.world.bound)  # type: ignore[arg-type]
        self._writer, self._partition = writer, writer.partition

    def _open(self) -> bool:
        store = self._writer.home.process
        if not store.alive:
            return False
        self._socket = end = store.listening.connect(self._writer)  # type: ignore[assignment]
        self._unsent, self._packets = b"", Packets()
        self._loop.add_reader(end, self._read)
        return True


class Serving:
    def __init__(self, copy: Copy) -> None:
        self.visible = copy.log()
        self.consumed = sum(at <= copy.cursor() for at, _ in self.visible)


class Writer(Process):
    """The process of a partition writes its files, and outlives lives of its node's store."""

    def __init__(self, world: World, node: Node, partition: str) -> None:
        super().__init__(world, node)
        self.home, self.partition = node, partition
        self.disk, self.copy = node.disk, node.disk.copies[partition]
        self.serving: Serving | None = None
        """What consumers may see; None until all that was found is shipped."""
        self.ledger, self.unsynced = 0, 0
        self.prepared = 0
        """The ledger whose file was begun, and that the manifest does not name yet."""
        self.is_leaving = self.is_beginning = False
        self.opened_files: dict[str, bytearray] = {}
        """As with descriptors: who unlinks a file takes no bytes from its writer."""
        self.key: At = (self.copy.term, world.name())
        self.copy.opened = self.key[1]
        self.link = Link(self)
        rests = [*self.copy.recover(), *self.copy.before(self.copy.front())]
        self.link.list_files(self.copy.listed())
        self.link.set_durability(SYNC, world.bound)
        for file in rests:
            self.link.gone(file)
        self.link.when_durable(self.show)
        self.begin(self.tick())

    @property
    def is_there(self) -> bool:
        """Whether it lives, and its directory is in its place."""
        is_copy = self.home.disk is self.disk and self.disk.copies.get(self.partition) is self.copy
        return self.alive and is_copy

    @property
    def lowest_ledger(self) -> int:
        return self.copy.last_ledger + 1

    def tick(self) -> Generator[Any, Any, None]:
        while self.alive:
            yield Wait(1.0)
            if not self.is_there:
                self.die()
                return
            self.link.tick()

    def show(self) -> None:
        self.world.check_serve(self)
        self.serving = Serving(self.copy)
        self.link.set_durability(SYNC if self.world.sync else ASYNC, self.world.bound)

    def confirm(self, append: Append) -> None:
        if self.serving is None or not self.alive:
            return
        ledger = ledger_of(append.file)
        if ledger is not None:
            at, content = (ledger, append.offset // LOG.size - 1), LOG.unpack(append.data)[0]
            self.serving.visible.append((at, content))
            self.world.check_confirm(self, at, content)
        elif append.file == "cursor" and self.world.sync:
            cursor, entry = CURSOR.unpack(append.data)
            self.world.check_receipt(self, (cursor, entry - 1))

    # ---- writing and syncing
    def written(self, file: str, record: bytes, is_listed: bool = True) -> Generator[Any, Any, Append]:
        """Write and sync a record, and tell it."""
        if file not in self.opened_files:
            self.opened_files[file] = self.copy.files.setdefault(file, bytearray())
        data = self.opened_files[file]
        append = Append(self.partition, file, len(data), record)
        data += record
        self.unsynced += 1
        yield from self.synced(append, is_listed)
        return append

    def synced(self, append: Append, is_listed: bool) -> Generator[Any, Any, None]:
        yield Wait(self.world.disk_time)
        if self.is_there:
            self.copy.synced[append.file] = append.end
            self.ship(append, is_listed)

    def ship(self, append: Append, is_listed: bool) -> None:
        self.unsynced -= 1
        self.link.synced(append.file, append.end)
        kind, front, _ = MANIFEST.unpack(append.data) if append.file == "manifest" else (OPEN, 0, 0)
        if kind == FRONT:
            for file in self.copy.before(front):
                self.link.gone(file)
        is_log = ledger_of(append.file) is not None and append.offset > 0 and is_listed
        if is_log or (self.world.sync and append.file == "cursor"):
            self.link.when_durable(lambda: self.confirm(append))
        else:
            self.link.flush()

    def append(self) -> None:
        if self.world.rng.random() < 0.2:
            self.end_ledger()
        record = LOG.pack(self.world.name())
        if self.ledger:
            self.begin(self.written(f"{self.ledger}-0", record))
        elif not self.is_beginning:
            self.begin(self.begin_ledger(record))

    def begin_ledger(self, record: bytes) -> Generator[Any, Any, None]:
        """Begin a file, store in it, and then name it in the manifest."""
        self.is_beginning = True
        if not self.prepared:
            yield from self.prepare()
        ledger, self.prepared = self.prepared, 0
        first = yield from self.written(f"{ledger}-0", record, is_listed=False)
        yield Wait(self.world.aside.choice((0.0, self.world.aside.uniform(0, 5))))
        if not self.is_leaving:
            yield from self.written("manifest", MANIFEST.pack(OPEN, ledger, 0))
            self.ledger = ledger
            self.link.when_durable(lambda: self.confirm(first))
        self.is_beginning = False
        if self.world.aside.random() < 0.5:
            yield from self.prepare()

    def prepare(self) -> Generator[Any, Any, None]:
        """Begin the file of the next ledger."""
        self.copy.last_ledger = ledger = self.lowest_ledger
        yield from self.written(f"{ledger}-0", HEADER)
        self.prepared = ledger

    def end_ledger(self) -> None:
        ledger, self.ledger = self.ledger, 0
        if ledger:
            count = len(self.opened_files.pop(f"{ledger}-0")) // LOG.size - 1
            self.begin(self.written("manifest", MANIFEST.pack(END, ledger, count)))

    def consume(self) -> None:
        assert self.serving is not None
        if new := self.serving.visible[self.serving.consumed :][: self.world.rng.randint(1, 4)]:
            self.serving.consumed += len(new)
            self.world.truths[self.partition].acked.update(content for _, content in new)
            (ledger, entry), _ = new[-1]
            self.begin(self.written("cursor", CURSOR.pack(ledger, entry + 1)))

    def trim(self) -> None:
        front = self.copy.cursor()[0]
        if (ledgers := self.copy.ledgers()) and ledgers[0] < front:
            self.begin(self.written("manifest", MANIFEST.pack(FRONT, front, 0)))


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
            for partition in world.wanted():
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
            and (s.life.is_ready or self.world.aside.random() < 0.3)
            and not (s.disk.store == owner.store and owner.store in self.ownership.sealed)
        ]
        if targets:
            target = self.world.rng.choice(targets)
            target.begin(target.adopt(partition, owner))

    def take_over(self, partition: str, owner: CatalogEntry) -> Generator[Any, Any, None]:
        found = yield from walk(owner.store)
        if partition in found.states and found.states[partition].has_left(owner.term):
            return self.give(partition, owner)
        yield from store_life.seal(owner.store, self.ownership, self.world.nonce)
        self.world.counts["sealed"] += 1
        for each in self.world.wanted():
            if self.ownership.owner(each).store == owner.store:
                self.give(each, self.ownership.owner(each))
        return None
