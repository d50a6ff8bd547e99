"""One life of a store compares, ships, serves, tells its files, and ends.

It decides only: tasks and actions are taken from it and carried out by others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from pulsar_ray.errors import JournalDamaged, PulsarException, ServiceUnitNotReady
from pulsar_ray.format.checksum import Buffer, checksum
from pulsar_ray.journal.catalog import NOBODY, Catalog
from pulsar_ray.journal.objects import (
    NEXT,
    Append,
    CatalogEntry,
    IndexObject,
    JournalObject,
    Place,
    index_key,
    journal_key,
    journal_prefix,
    ledger_of,
    pack_index,
    pack_piece,
    piece_key,
    pieces_of,
    pieces_prefix,
    place_of,
    unpack_index,
    unpack_piece,
)
from pulsar_ray.journal.partition_state import FileState, PartitionState, apply
from pulsar_ray.journal.reading import Walk, create, refuse_hole, walk
from pulsar_ray.journal.requests import (
    UNKNOWN,
    Delete,
    Get,
    ListKeys,
    Shipped,
    Task,
    Wait,
    ask,
    pauses_s,
)
from pulsar_ray.journal.shipping import Cut, Queued, Shipping

PIECE_BYTES = 8 * 1024 * 1024
MOST_INDEX_BYTES = 16 * 1024 * 1024
"""Ends of files may take so much of an index before they become pieces."""
LEAST_INLINE_BYTES = 512
TRIES_TO_CLEAR = 5
TRIES_TO_CHECKPOINT = 3
"""A file that is replaced meanwhile ends one; many partitions often have such a file."""
CLEARING_SECONDS = 0.05
T = TypeVar("T")


class Directory(Protocol):
    """A store's directory: what is synced here."""

    def partitions(self) -> list[str]:
        """Return the partitions that are here."""

    def term(self, partition: str) -> int:
        """Return the term in which the partition is here."""

    def left(self, partition: str) -> set[int]:
        """Return the terms in which the partition left."""

    def lengths(self, partition: str) -> dict[str, int]:
        """Return the lengths of the files."""

    def read(self, partition: str, file: str, start: int, end: int) -> bytes:
        """Return bytes of a file, fewer if they are not there."""

    def recover(self, partition: str) -> None:
        """Recover the partition's files and sync them; delete nothing that the manifest lists."""

    def enter(self, partition: str, files: Iterable[str]) -> None:
        """Note durably that a partition with these files is in the journal."""

    def leave_out(self, partition: str) -> None:
        """Note durably that a partition is not in the journal any more."""

    def is_dropped(self, partition: str) -> bool:
        """Return whether the partition is no more, and has to go from the journal."""

    def is_superseded(self, partition: str, file: str) -> bool:
        """Return whether a file is not here because something later here stands for it."""

    def discard_staged(self, partition: str) -> None:
        """Forget what was staged and not installed."""

    def stage(self, partition: str, file: str, data: Buffer) -> None:
        """Add bytes to a file that will be installed."""

    def install(self, partition: str, term: int) -> None:
        """Install the staged files durably, wholly or not at all, and recover them."""

    def note_left(self, partition: str) -> None:
        """Note durably that the partition left in its present term."""

    def remove(self, partition: str, term: int) -> None:
        """Remove the partition if it is here in that term."""

    def unlink_files(self, partition: str, files: tuple[str, ...]) -> None:
        """Remove files that nothing here lists any more."""

    def offloaded(self, partition: str, file: str) -> list[tuple[int, int, int]] | None:
        """Return the pieces of an offloaded file, None for one that is here."""

    def offload(self, partition: str, file: str, pieces: list[tuple[int, int, int]]) -> bool:
        """Note durably which pieces have a file, and remove it; False without it."""

    def closed(self, partition: str, is_staged: bool = False) -> dict[str, int]:
        """Return the lengths of segments that the manifest has as closed, without compacted ones."""

    def stage_note(self, partition: str, file: str, pieces: list[tuple[int, int, int]]) -> None:
        """Note which pieces have all of a file that will be installed."""

    def fetch_back(self, partition: str, file: str, start: int, data: Buffer) -> None:
        """Add bytes to a file that is to be here again."""

    def end_fetching(self, partition: str, file: str) -> None:
        """Give a file that was fetched back its place, durably, and remove its note."""


@dataclass(frozen=True)
class Serve:
    """The partition may be served from now on."""

    partition: str


@dataclass(frozen=True)
class Deposed:
    """This life is over; `is_set_aside` if nothing of the directory may be served again."""

    is_set_aside: bool


@dataclass
class StoreLife:
    """The journal's side of a store's process; its life was raised and synced before."""

    store: str
    life: int
    directory: Directory
    nonce: Callable[[], bytes]
    cut: Cut = field(default_factory=Cut)
    inline_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        self.shipping = Shipping(self.store, self.life, self.cut, self.directory.read, self.nonce)
        self.catalog = Catalog()
        self.mirror: dict[str, PartitionState] = {}
        self.is_ready = False
        self.serving: set[str] = set()
        self.disk_failures: dict[str, str] = {}
        """Why files of partitions are not read now; they are tried again."""
        self._known: dict[str, dict[str, int]] = {}
        """How far each file of an adopted partition is queued, or shipped."""
        self._synced_ends: dict[str, dict[str, int]] = {}
        """How far files are synced here, of partitions that are being adopted."""
        self._awaited_turn = 0
        self._sealed_walk: tuple[str, Walk] | None = None
        self._walking: set[str] = set()
        """Sealed stores whose journals are being read."""
        self._is_claiming = False
        self._busy: set[str] = set()
        """Partitions that are being adopted or claimed."""
        self.untaken: dict[str, str] = {}
        """Why partitions are not in the journal yet; the next look tries again."""
        self._clearing: set[str] = set()
        """Partitions that left the journal, and whose pieces may be deleted yet."""
        self._dropping: set[tuple[str, int]] = set()
        self._fetching: set[str] = set()
        self._going: set[tuple[str, str]] = set()
        """Files whose bytes may be queued yet, before what says that they are gone."""
        self._index_number = -1
        self._is_checkpointing = False
        self._tasks: list[Task[Any]] = []
        self._actions: list[Serve | Deposed] = []
        self._now = 0.0

    # ---- what a shell calls
    def advance(self, now: float) -> tuple[list[Task[Any]], list[Serve | Deposed]]:
        """Return the tasks to run, and what happened to partitions."""
        self._now = now
        for put in self.shipping.begin(now, self.is_awaited):
            self._tasks.append(self._ship(put))
        tasks, self._tasks = self._tasks, []
        actions, self._actions = self._actions, []
        return tasks, actions

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the shipping itself."""
        return self._awaited_turn > self.shipping.shipped

    @property
    def disk_failure(self) -> str:
        """Why a disk holds up what is to be shipped; "" if it does not."""
        return self.shipping.read_failure or next(iter(tuple(self.disk_failures.values())), "")

    def _from_disk(self, partition: str, read: Callable[[], T]) -> Task[T]:
        """Read from this directory, again until the disk gives it."""
        pauses = pauses_s()
        try:
            while True:
                try:
                    return read()
                except OSError as error:
                    self.disk_failures[partition] = str(error)
                yield Wait(next(pauses))
        finally:
            self.disk_failures.pop(partition, None)

    def tell(self, now: float, partition: str, ends: dict[str, int], is_awaited: bool) -> int:
        """Queue files up to these synced ends, and return the turn of all that.

        It may be repeated. A partition that the journal does not know waits until it is adopted: see `begin`.
        """
        known = self._known.get(partition)
        if known is None:
            told = self._synced_ends.setdefault(partition, {})
            for file, end in ends.items():
                told[file] = max(end, told.get(file, 0))
            return self.shipping.turn
        for file in in_order(ends):
            begin, end = known.get(file, 0), ends[file]
            if end > begin:
                known[file] = end
                self.shipping.queue(now, Append(partition, file, begin), end - begin)
        turn = self.shipping.turn
        if is_awaited:
            self._awaited_turn = turn
        return turn

    def gone(self, now: float, partition: str, files: Sequence[str]) -> None:
        """Queue that nothing lists these files; they are removed when that is shipped."""
        known, told = self._known.get(partition, {}), self._synced_ends.get(partition, {})
        for file in files:
            told.pop(file, None)
        shipped = tuple(file for file in files if known.pop(file, None) is not None)
        if shipped:
            self._going.update((partition, file) for file in shipped)
            self.shipping.queue(now, Append(partition, "", 0, mark=("gone", shipped)))
        unknown = tuple(file for file in files if (partition, file) not in self._going)
        self.directory.unlink_files(partition, unknown)

    def drop(self, partition: str) -> None:
        """Queue that a partition is no more; its rest goes when that is shipped."""
        if partition in self.mirror or partition in self._known:
            self._drop(partition, self.directory.term(partition))
        elif partition in self.directory.partitions():
            self.directory.remove(partition, self.directory.term(partition))

    def forget(self, partition: str) -> None:
        """Have a partition of this directory leave the journal.

        That is noted here when it is shipped. A life that is not ready, or claims it just now, does nothing:
        who wants it asks until it is noted.
        """
        if not self.is_ready or partition in self._busy:
            return
        self.untaken.pop(partition, None)
        self._synced_ends.pop(partition, None)
        if self._known.pop(partition, None) is not None:
            self.serving.discard(partition)
            self._clearing.add(partition)
            self.shipping.queue(self._now, Append(partition, "", 0, mark=("forget",)))
        elif partition not in self.mirror and partition not in self._clearing:
            self.directory.leave_out(partition)  # it never came into the journal

    def forget_walk(self) -> None:
        """Free what was read of a sealed store's journal, when all is adopted."""
        self._sealed_walk = None

    def files_of(self, partition: str) -> dict[str, int]:
        """Return how far the files of a partition are queued or shipped."""
        return self._known.get(partition, {})

    def knows(self, partition: str) -> bool:
        """Return whether the partition is in this journal, or on its way there."""
        return partition in self._known or partition in self._busy

    def is_busy(self, partition: str) -> bool:
        """Return whether the partition is being adopted or claimed just now."""
        return partition in self._busy

    def begin(self, partition: str) -> Task[None]:
        """Take a partition of this directory into the journal, and claim it.

        If that fails, it is `untaken`, and the next look begins it anew.
        """
        if not self.is_ready or self.knows(partition):
            return
        try:
            with self._claiming(partition):
                yield from self._take_in(partition)
                yield from self._claimed(partition)
        except PulsarException as error:
            self.untaken[partition] = error.text
            return
        self.settle()

    def _take_in(self, partition: str) -> Task[None]:
        while partition in self._clearing:
            yield Wait(CLEARING_SECONDS)  # else what is uploaded would be deleted behind that
        files = list(self._synced_ends.get(partition, {}))
        yield from self._from_disk(partition, partial(self.directory.enter, partition, files))
        while True:
            ends = dict(self._synced_ends.get(partition, {}))
            try:
                packed = yield from self._adoption(partition, ends)
                break
            except JournalDamaged:
                # Its owner goes on writing: a file that was replaced or trimmed meanwhile is gone.
                if ends.keys() <= self._synced_ends.get(partition, {}).keys():
                    raise
        self._queue_adoption(partition, packed)
        self.untaken.pop(partition, None)
        told = self._synced_ends.pop(partition, {})
        self.tell(self._now, partition, told, is_awaited=True)
        self.gone(self._now, partition, [file for file in ends if file not in told])
        yield from self.until_shipped()

    def _begin_untaken(self) -> None:
        here = set(self.directory.partitions())
        for partition in sorted(self.untaken):
            if self.knows(partition) or partition not in here or self.directory.is_dropped(partition):
                del self.untaken[partition]
            else:
                self._tasks.append(self.begin(partition))

    @contextmanager
    def _claiming(self, partition: str) -> Iterator[None]:
        """Keep others from adopting or claiming a partition meanwhile."""
        self._busy.add(partition)
        try:
            yield
        finally:
            self._busy.discard(partition)

    def start(self) -> Task[None]:
        """Close the former life, compare, ship what is only here, and then be ready."""
        found = yield from walk(self.store, JournalObject(self.nonce(), NEXT, self.life))
        if found.is_sealed or found.is_foreign or (yield from self._lacks(found.states)):
            self._depose(is_set_aside=True)
            return
        self._index_number = found.index_number
        self.mirror = found.states
        for state in self.mirror.values():
            for file in state.files.values():
                file.tail = None
        for partition in sorted(self.directory.partitions()):
            if self.directory.is_dropped(partition):
                self._drop(partition, self.directory.term(partition))
                continue
            self.directory.recover(partition)
            yield from self._ship_missing(partition)
        yield from self.until_shipped()
        yield from self.catalog.read()
        self.is_ready = True
        self._take_told()
        self.settle()

    def _take_told(self) -> None:
        """Take what was told before this life was ready."""
        here = set(self.directory.partitions())
        for partition in sorted(self._synced_ends.keys() | here):
            if partition in self._known:
                self.tell(self._now, partition, self._synced_ends.pop(partition, {}), is_awaited=True)
            elif partition in here and not self.directory.is_dropped(partition):
                self._tasks.append(self.begin(partition))

    def look(self) -> Task[None]:
        """See whether an idle life was sealed, and what was decided meanwhile.

        Of the stores that read the last entry before a snapshot each writes it, so nobody depends on one.
        """
        number = self.shipping.next_number
        if self.shipping.prefix == number:
            stored = yield from ask(Get(journal_key(self.store, Place(self.life, number))))
            if stored is not None and self.shipping.next_number == number:
                self._depose()
                return
        yield from self.catalog.read()
        self.settle()
        self._begin_untaken()
        yield from self.catalog.snapshot()

    def depart(self, partition: str) -> Task[None]:
        """Have a partition leave that nobody serves any more.

        Its files are final. Raises ServiceUnitNotReady if it is not ours
        to leave. It may be repeated.
        """
        term = self.directory.term(partition)
        is_left = term in self.directory.left(partition)
        if not self.is_ready or partition in self._busy or not (is_left or partition in self.serving):
            raise ServiceUnitNotReady(f"partition {partition} is not owned here in the object store yet")
        self._check_readable(partition)
        lengths = self.directory.lengths(partition)
        self.tell(self._now, partition, lengths, is_awaited=True)
        self.gone(self._now, partition, [file for file in self.files_of(partition) if file not in lengths])
        self.directory.note_left(partition)
        self.shipping.queue(self._now, Append(partition, "", 0, mark=("leave", term)))
        self._awaited_turn = self.shipping.turn
        yield from self.until_shipped()
        self.serving.discard(partition)
        yield from self.catalog.read()
        if self.shipping.is_deposed:
            raise ServiceUnitNotReady(f"partition {partition} was taken over meanwhile")
        self._check_readable(partition)

    def _check_readable(self, partition: str) -> None:
        if (why := self.shipping.unreadable.get(partition)) is not None:
            raise ServiceUnitNotReady(f"partition {partition} is shipped no further, since {why}")

    def adopt(self, partition: str, source: CatalogEntry) -> Task[None]:
        """Restore, ship and claim a partition that was left, or whose owner is sealed."""
        if not self.is_ready or partition in self._busy or partition in self.serving:
            return
        if self._is_newer(partition, source):
            return
        with self._claiming(partition):
            state = yield from self._restore(partition, source)
            if state is None:
                return
            self.directory.install(partition, source.term + 1)
            packed = yield from self._adoption(partition, restored=state)
            self._queue_adoption(partition, packed)
            yield from self.until_shipped()
            yield from self._claimed(partition)
        self.settle()

    def checkpoint(self) -> Task[bool]:
        """Tell the files as shipped, then delete what is before; return whether it did."""
        if self._is_checkpointing or not self.is_ready:
            return False
        self._is_checkpointing = True
        try:
            for _ in range(TRIES_TO_CHECKPOINT):
                if (yield from self._checkpoint(Place(self.life, self.shipping.prefix))):
                    return True
            return False
        finally:
            self._is_checkpointing = False

    def put_in_pieces(self, partition: str) -> Task[int]:
        """Ship a partition, and make pieces of the ends of its files.

        Returns how many bytes have come meanwhile: so much is left to ship and read when it leaves.
        """
        yield from self.until_shipped()
        while self._is_checkpointing:  # that one may have begun before the last of it was shipped
            yield Wait(CLEARING_SECONDS)
        yield from self.checkpoint()
        mirror = self.mirror.get(partition)
        bases = {} if mirror is None else {name: file.base for name, file in mirror.files.items()}
        lengths = self.files_of(partition)
        return sum(max(0, end - bases.get(name, 0) - self.inline_bytes) for name, end in lengths.items())

    def offload(self, partition: str, files: Sequence[str]) -> Task[list[str]]:
        """Leave closed files to the object store alone, and return those.

        The pieces of each are there and in a durable index before it is removed here. Files of a partition
        that is not served, or that have gone meanwhile, are left out.
        """
        yield from self.until_shipped()
        while self._is_checkpointing:
            yield Wait(CLEARING_SECONDS)
        self._is_checkpointing = True
        try:
            wanted = yield from self._covered(partition, files)
            if not wanted or not (yield from self._checkpoint(Place(self.life, self.shipping.prefix))):
                return []
            return (yield from self._removed_here(partition, wanted))
        finally:
            self._is_checkpointing = False

    def fetch_back(self, partition: str, files: Sequence[str]) -> Task[list[str]]:
        """Bring offloaded files back to this directory, and return them.

        Those are left out that were trimmed meanwhile, or whose partition is another's by now. Raises
        JournalDamaged if an object is gone or damaged.
        """
        while partition in self._fetching:  # else both would write the same file
            yield Wait(CLEARING_SECONDS)
        self._fetching.add(partition)
        try:
            done, is_here = list[str](), partition in self.directory.partitions()
            term = self.directory.term(partition) if is_here else 0
            for name in files:
                done += yield from self._fetch_back(partition, term, name)
            return done
        finally:
            self._fetching.discard(partition)

    def _fetch_back(self, partition: str, term: int, name: str) -> Task[list[str]]:
        pieces = self._offloaded_in(partition, term, name)
        for start, end, total in pieces or ():
            key = piece_key(partition, name, start, end)
            stored = yield from ask(Get(key))
            if self._offloaded_in(partition, term, name) != pieces:
                return []  # it was trimmed meanwhile, or adopted anew
            if stored is None:
                if (yield from self._is_anothers(partition, term)):
                    return []
                raise JournalDamaged(f"{key} is not there: bring it back from the bucket's versions")
            data = unpack_piece(key, stored)
            if checksum(data) != total:
                raise JournalDamaged(f"{key} has other bytes than were written there")
            self.directory.fetch_back(partition, name, start, data)
        if not pieces:
            return []
        self.directory.end_fetching(partition, name)
        return [name]

    def _offloaded_in(self, partition: str, term: int, name: str) -> list[tuple[int, int, int]] | None:
        return self.directory.offloaded(partition, name) if self._is_here(partition, term) else None

    def _is_anothers(self, partition: str, term: int) -> Task[bool]:
        """Whether somebody else owns the partition by now, and so may delete.

        It is asked before anything is called missing: who was taken over may not know it yet.
        """
        yield from self.catalog.read()
        owner = self.catalog.owner(partition)
        return (owner.store, owner.term) != (self.store, term)

    def until_shipped(self) -> Task[None]:
        """Wait until everything that was queued so far is in the prefix."""
        yield Shipped(self.shipping.turn)

    # ---- a new life
    def _lacks(self, states: dict[str, PartitionState]) -> Task[bool]:
        """Whether something shipped is not here, byte for byte."""
        here = set(self.directory.partitions())
        for partition, state in states.items():
            if partition not in here or (yield from self._lacks_of(partition, state)):
                return True
        return False

    def _lacks_of(self, partition: str, state: PartitionState) -> Task[bool]:
        if self.directory.term(partition) != state.term:
            return self.directory.term(partition) < state.term
        for name, file in state.files.items():
            differs = yield from self._from_disk(partition, partial(self._differs, partition, name, file))
            if differs and not self.directory.is_superseded(partition, name):
                return True
        return False

    def _differs(self, partition: str, name: str, file: FileState) -> bool:
        if (pieces := self.directory.offloaded(partition, name)) is not None:
            return not pieces or pieces[-1][1] < file.length
        # Those before the last were read back by nobody since, and a copy of the directory has an older life.
        for start, end, total in file.pieces[-1:]:
            data = self.directory.read(partition, name, start, end)
            if len(data) < end - start or checksum(data) != total:
                return True
        return self.directory.read(partition, name, file.base, file.length) != bytes(file.tail or b"")

    def _ship_missing(self, partition: str) -> Task[None]:
        """Queue what the journal lacks: logs, then the manifest, then cursors."""
        mirror, now = self.mirror.get(partition), self._now
        if mirror is None or mirror.term != self.directory.term(partition):
            packed = yield from self._adoption(partition)
            self._queue_adoption(partition, packed)
            return
        lengths = yield from self._from_disk(partition, partial(self.directory.lengths, partition))
        known = self._known[partition] = {name: file.length for name, file in mirror.files.items()}
        for file in in_order(lengths):
            if file not in known and self.directory.offloaded(partition, file) is not None:
                continue  # it is being trimmed, and has no bytes here
            begin = known.get(file, 0)
            if lengths[file] > begin or file not in known:
                known[file] = lengths[file]
                self.shipping.queue(now, Append(partition, file, begin), lengths[file] - begin)
            if is_manifest(file):
                self._queue_marks(partition, mirror)
        if missing := [file for file in known if file not in lengths]:
            self.gone(now, partition, missing)

    def _queue_marks(self, partition: str, mirror: PartitionState) -> None:
        for term in sorted(self.directory.left(partition) - mirror.left):
            self.shipping.queue(self._now, Append(partition, "", 0, mark=("leave", term)))

    # ---- serving, claiming, dropping
    def settle(self) -> None:
        """Serve, claim or drop, as the catalog says.

        A copy stays until its term is decided: a former life's claim may still arrive. One that did not come
        into the journal yet, or left it, is not served: its receipts would go by what others have shipped.
        """
        here = set(self.directory.partitions())
        for partition in sorted(here | self.mirror.keys()):
            if partition in self._busy or partition in self.serving:
                continue
            is_here, owner = partition in here, self.catalog.owner(partition)
            term = self.directory.term(partition) if is_here else self.mirror[partition].term
            if is_here and self.directory.is_dropped(partition):
                continue
            if (owner.store, owner.term) == (self.store, term):
                if partition in self._known and term not in self.directory.left(partition):
                    self._serve(partition)
            elif owner.term >= term:
                self._drop(partition, term)
            elif partition in self._known and self.store not in self.catalog.sealed:
                self._tasks.append(self._claim(partition))

    def _serve(self, partition: str) -> None:
        self.serving.add(partition)
        self._actions.append(Serve(partition))

    def _drop(self, partition: str, term: int) -> None:
        self._known.pop(partition, None)
        self.serving.discard(partition)
        if (partition, term) not in self._dropping:
            self._dropping.add((partition, term))
            self.shipping.queue(self._now, Append(partition, "", 0, mark=("drop", term)))

    def _claim(self, partition: str) -> Task[None]:
        if partition in self._busy:
            return
        with self._claiming(partition):
            yield from self._claimed(partition)
        self.settle()

    def _claimed(self, partition: str) -> Task[None]:
        """Decide, if it may be, that a partition is ours in its present term."""
        while self._is_claiming:
            yield Wait(CLEARING_SECONDS)  # else each would write the next entry, and all but one in vain
        self._is_claiming = True
        try:
            yield from self.catalog.read()
            while self._may_claim(partition):
                term = self.directory.term(partition)
                entry = CatalogEntry(self.nonce(), "owner", partition, self.store, term)
                yield from self.catalog.enter(entry)
        finally:
            self._is_claiming = False

    def _may_claim(self, partition: str) -> bool:
        if partition not in self.directory.partitions() or self.store in self.catalog.sealed:
            return False
        owner = self.catalog.owner(partition)
        # A log that was there before its journal may begin with a later term: see `first_term`.
        return owner == NOBODY or owner.term == self.directory.term(partition) - 1

    # ---- taking over
    def _walked(self, store: str) -> Task[Walk]:
        """Read a store's journal, once for all of its partitions if it is sealed.

        Nothing comes behind a seal.
        """
        while store in self._walking:
            yield Wait(CLEARING_SECONDS)  # another partition of it is being adopted
        if self._sealed_walk is not None and self._sealed_walk[0] == store:
            return self._sealed_walk[1]
        if store in self.catalog.sealed:
            self._walking.add(store)
        try:
            found = yield from walk(store)
        finally:
            self._walking.discard(store)
        self._sealed_walk = (store, found) if found.is_sealed else None
        return found

    def _is_newer(self, partition: str, source: CatalogEntry) -> bool:
        """Whether it is here in a later term: who asks is behind the time."""
        return partition in self.directory.partitions() and self.directory.term(partition) > source.term

    def _restore(self, partition: str, source: CatalogEntry) -> Task[PartitionState | None]:
        if source == NOBODY:
            self.directory.discard_staged(partition)
            return PartitionState(0)
        found = yield from self._walked(source.store)
        state = found.states.get(partition)
        if state is None or state.term < source.term:
            return None
        if not found.is_sealed and not state.has_left(source.term):
            return None
        self.directory.discard_staged(partition)
        closed: dict[str, int] | None = None
        for name in sorted(state.files, key=lambda name: ledger_of(name) is not None):
            if ledger_of(name) is not None and closed is None:
                closed = self.directory.closed(partition, is_staged=True)  # the manifest came before
            is_closed = closed is not None and closed.get(name) == state.files[name].length
            if missing := (yield from self._stage(partition, name, state.files[name], is_closed)):
                yield from self.catalog.read()
                if self.catalog.owner(partition) == source:
                    raise JournalDamaged(
                        f"{missing} is not there: bring it back from the bucket's versions; `pulsar-ray "
                        "remote verify` names all that is missing"
                    )
                return None  # the partition has moved on
        return state

    def _stage(self, partition: str, name: str, file: FileState, is_closed: bool) -> Task[str]:
        """Stage a file, a closed segment by reference; return the missing piece."""
        keys = [piece_key(partition, name, start, end) for start, end, _ in file.pieces]
        if keys and is_closed:
            there = yield from ask(ListKeys(pieces_of(partition, name)))
            if missing := set(keys).difference(there):
                return min(missing)
            yield from self._stage_by_reference(partition, name, file)
            return ""
        self.directory.stage(partition, name, b"")
        for key in keys:
            stored = yield from ask(Get(key))
            if stored is None:
                return key
            self.directory.stage(partition, name, unpack_piece(key, stored))
        self.directory.stage(partition, name, bytes(file.tail or b""))
        return ""

    def _stage_by_reference(self, partition: str, name: str, file: FileState) -> Task[None]:
        """Leave a closed segment in the object store, and stage its note."""
        while file.base < file.length:
            end = min(file.length, file.base + PIECE_BYTES)
            data = bytes((file.tail or b"")[: end - file.base])
            key = piece_key(partition, name, file.base, end)
            if (yield from create(key, pack_piece(data))) is not None:
                raise JournalDamaged(f"two contents of one piece: {key}")
            file.cover(end, checksum(data))
        self.directory.stage_note(partition, name, list(file.pieces))

    def _queue_adoption(self, partition: str, packed: Any) -> None:
        state = PartitionState.unpack(packed, keeps_bytes=False)
        self._known[partition] = {name: file.length for name, file in state.files.items()}
        self.shipping.queue(self._now, Append(partition, "", 0, mark=("adopt", packed)))

    def _adoption(
        self, partition: str, ends: dict[str, int] | None = None, restored: PartitionState | None = None
    ) -> Task[Any]:
        """Upload what no piece of an adopted partition has, and return its state."""
        state = PartitionState(self.directory.term(partition))
        state.left = self.directory.left(partition)
        if ends is None:
            ends = yield from self._from_disk(partition, partial(self.directory.lengths, partition))
        for name, length in ends.items():
            pieces = self.directory.offloaded(partition, name) or []
            if not pieces and restored is not None and name in restored.files:
                pieces = _large_pieces(restored.files[name].pieces, length)
            state.files[name] = FileState(pieces, length, None)
        tails = yield from self._upload(partition, state, self.inline_bytes)
        if tails is None:
            raise JournalDamaged(f"{partition} changed while it was adopted")
        return state.pack(tails)

    # ---- shipping, index, deletion
    def _ship(self, put: Task[list[Queued]]) -> Task[None]:
        for item in (yield from put):
            self._durable(item)
        if self.shipping.is_deposed:
            self._depose()

    def _durable(self, item: Queued) -> None:
        """Act on what is in the contiguous prefix, so before any seal."""
        append = item.append
        apply(self.mirror, append, item.length)
        if append.mark[:1] == ("forget",):
            self._tasks.append(self._clear_forgotten(append.partition))
        elif append.mark[:1] == ("gone",):
            self._tasks.append(self._unlink_files(append.partition, append.mark[1]))
        elif append.mark[:1] == ("drop",):
            self.directory.remove(append.partition, append.mark[1])
            self._dropping.discard((append.partition, append.mark[1]))
            self._tasks.append(self._clear_pieces(append.partition))

    def _unlink_files(self, partition: str, files: tuple[str, ...]) -> Task[None]:
        self._going.difference_update((partition, file) for file in files)
        self.directory.unlink_files(partition, files)
        for file in files:
            names = yield from ask(ListKeys(pieces_of(partition, file)))
            if names:
                yield Delete(tuple(names))

    def _clear_pieces(self, partition: str) -> Task[None]:
        """Delete the pieces of a partition that this store dropped, unless another one has it."""
        yield from self.catalog.read()
        if self.catalog.owner(partition).store == self.store and partition not in self.mirror:
            names = yield from ask(ListKeys(pieces_prefix(partition)))
            if names:
                yield Delete(tuple(names))

    def _clear_forgotten(self, partition: str) -> Task[None]:
        """Delete the pieces of a partition that left the journal, before it may come back.

        Its directory says that it left only now: in the journal it would be missing there after a restart.
        """
        yield from self._from_disk(partition, partial(self.directory.leave_out, partition))
        yield from self.catalog.read()
        if self.catalog.owner(partition).store == self.store:
            names = yield from ask(ListKeys(pieces_prefix(partition)))
            for pause_s in islice(pauses_s(), TRIES_TO_CLEAR if names else 0):
                if (yield Delete(tuple(names), is_awaited=True)) is not UNKNOWN:
                    break
                yield Wait(pause_s)
        self._clearing.discard(partition)

    def _upload(
        self, partition: str, state: PartitionState, inline_bytes: int
    ) -> Task[dict[str, bytes] | None]:
        """Upload pieces of files; return the bytes behind them, None without files."""
        tails = {}
        for name, file in state.files.items():
            while file.length - file.base > inline_bytes:
                end = min(file.length, file.base + PIECE_BYTES)
                read = partial(self.directory.read, partition, name, file.base, end)
                data = yield from self._from_disk(partition, read)
                if len(data) < end - file.base:
                    return None
                key, body = piece_key(partition, name, file.base, end), pack_piece(data)
                if (yield from create(key, body)) is not None:
                    raise JournalDamaged(f"two contents of one piece: {key}")
                file.cover(end, checksum(data))
            read = partial(self.directory.read, partition, name, file.base, file.length)
            tails[name] = yield from self._from_disk(partition, read)
            if not self._is_here(partition, state.term) or len(tails[name]) < file.length - file.base:
                return None
        return tails

    def _covered(self, partition: str, files: Sequence[str]) -> Task[list[str]]:
        """Upload the rest of some files; return those of which all is there."""
        covered, mirror = [], self.mirror.get(partition)
        if mirror is None or partition not in self.serving:
            return []
        closed = self.directory.closed(partition)
        for name in files:
            file = mirror.files.get(name)
            if file is None or not file.length or closed.get(name) != file.length:
                continue
            if self.directory.offloaded(partition, name) is not None:
                continue
            whole = FileState(_large_pieces(file.pieces, file.length), file.length, None)
            one = PartitionState(mirror.term, files={name: whole})
            if (yield from self._upload(partition, one, 0)) is None:
                continue
            if mirror is self.mirror.get(partition) and mirror.files.get(name) is file:
                file.pieces = whole.pieces
                covered.append(name)
        return covered

    def _removed_here(self, partition: str, files: list[str]) -> Task[list[str]]:
        """Remove files of which the index has all.

        Smaller pieces of them stay until the file is gone: who takes over may have read an older index.
        """
        removed, served = [], self.mirror.get(partition)
        for name in files:
            there = yield from ask(ListKeys(pieces_of(partition, name)))
            file = self._served_file(partition, name)
            if served is not self.mirror.get(partition) or served is None:
                break  # it was adopted anew meanwhile
            if file is None or file.base != file.length:
                continue
            keys = {piece_key(partition, name, start, end) for start, end, _ in file.pieces}
            if missing := keys.difference(there):
                if (yield from self._is_anothers(partition, served.term)):
                    break
                raise JournalDamaged(
                    f"{min(missing)} is not there although it was written: {name} stays here"
                )
            if self.directory.offload(partition, name, list(file.pieces)):
                removed.append(name)
        return removed

    def _served_file(self, partition: str, name: str) -> FileState | None:
        """Return what is shipped of a file, if its partition is served in that term."""
        mirror = self.mirror.get(partition)
        if mirror is None or self.shipping.is_deposed or partition in self._busy:
            return None
        if partition not in self.serving or not self._is_here(partition, mirror.term):
            return None
        return mirror.files.get(name)

    def _is_here(self, partition: str, term: int) -> bool:
        return partition in self.directory.partitions() and self.directory.term(partition) == term

    def _told(self) -> dict[str, PartitionState]:
        """Return what an index tells, as the shipped prefix has it."""
        return {p: state.copy() for p, state in self.mirror.items()}

    def _checkpoint(self, start: Place) -> Task[bool]:
        packed, told = {}, self._told()
        files = sum(len(state.files) for state in told.values())
        inline_bytes = min(self.inline_bytes, max(LEAST_INLINE_BYTES, MOST_INDEX_BYTES // max(files, 1)))
        for partition, state in told.items():
            if not self._is_here(partition, state.term):
                return False  # it is being replaced or dropped; the next index will tell
            tails = yield from self._upload(partition, state, inline_bytes)
            if tails is None:
                return False
            self._note_pieces(partition, state)  # the next try needs them no more
            packed[partition] = state.pack(tails)
        if not (yield from self._write_index(IndexObject(self.nonce(), start, packed))):
            return False
        yield from self._clear_before(start)
        return True

    def _write_index(self, index: IndexObject) -> Task[bool]:
        while True:
            key = index_key(self.store, self._index_number + 1)
            other = yield from create(key, pack_index(index))
            if other is not None and unpack_index(key, other).start > index.start:
                self._depose()  # it is of a later life
                return False
            self._index_number += 1
            if other is None:
                return True  # else it was a former life's, which arrived late

    def _note_pieces(self, partition: str, state: PartitionState) -> None:
        mirror = self.mirror.get(partition)
        if mirror is not None and mirror.term == state.term:
            for name, file in state.files.items():
                if name in mirror.files:
                    mirror.files[name].pieces = list(file.pieces)

    def _clear_before(self, start: Place) -> Task[None]:
        names = yield from ask(ListKeys(journal_prefix(self.store)))
        yield Delete(tuple(name for name in names if place_of(name) < start))
        indexes = yield from ask(ListKeys(f"index/{self.store}/"))
        yield Delete(tuple(indexes[:-1]))

    def _depose(self, is_set_aside: bool = False) -> None:
        self.shipping.depose()
        self._actions.append(Deposed(is_set_aside))


def _large_pieces(pieces: Sequence[tuple[int, int, int]], length: int) -> list[tuple[int, int, int]]:
    """Return the pieces of a file, none where larger ones are better."""
    kept = [piece for piece in pieces if piece[1] <= length]
    return kept if len(kept) <= 2 + length // (PIECE_BYTES // 2) else []


def in_order(files: dict[str, int]) -> list[str]:
    """Return files in the order of shipping, cursors behind their logs."""
    return sorted(files, key=lambda f: (2 if ledger_of(f) is None else 0) - is_manifest(f))


def is_manifest(file: str) -> bool:
    """Return whether a file is a partition's manifest, one of any owner."""
    return file.startswith("manifest")


def seal(store: str, catalog: Catalog, nonce: Callable[[], bytes]) -> Task[None]:
    """End a store's journal for ever, and enter that in the catalog.

    Raises JournalDamaged if an object of it is missing, behind which nothing would be read.
    """
    yield from refuse_hole(store)
    yield from walk(store, JournalObject(nonce(), "sealed", 0))
    yield from catalog.read()
    while store not in catalog.sealed:
        yield from catalog.enter(CatalogEntry(nonce(), "sealed", store=store))
