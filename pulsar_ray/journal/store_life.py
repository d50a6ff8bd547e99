"""One life of a store compares, ships, serves, tells its files, and ends.

Requests to the object store are yielded by its tasks, for others to carry out, as is what happens to
partitions. Files are read, renamed and removed at once, through `directory`, which syncs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Any

from pulsar_ray.errors import JournalDamaged, PulsarException, ServiceUnitNotReady
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.life.checkpoints import Checkpoints
from pulsar_ray.journal.life.claims import Claims
from pulsar_ray.journal.life.clearing import Clearing
from pulsar_ray.journal.life.directory import Directory
from pulsar_ray.journal.life.restoring import Restoring
from pulsar_ray.journal.life.uploads import Uploads
from pulsar_ray.journal.objects import (
    NEXT,
    Append,
    CatalogEntry,
    JournalObject,
    Place,
    journal_key,
    ledger_of,
)
from pulsar_ray.journal.offloaded.offloading import Offloading
from pulsar_ray.journal.ownership import Ownership
from pulsar_ray.journal.partition_state import FileState, PartitionState, apply
from pulsar_ray.journal.reading import refuse_hole, walk
from pulsar_ray.journal.requests import (
    Get,
    Shipped,
    Task,
    ask,
    until,
)
from pulsar_ray.journal.shipping import Cut, Queued, Shipping


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
    inline_bytes: InitVar[int] = 64 * 1024
    ownership: Ownership = field(default_factory=Ownership)

    def __post_init__(self, inline_bytes: int) -> None:
        self.shipping = Shipping(self.store, self.life, self.cut, self.directory.read, self.nonce)
        self.mirror: dict[str, PartitionState] = {}
        """The files of each partition as the shipped prefix has them."""
        self.uploads = Uploads(self.directory, inline_bytes)
        self.claims = Claims(self.store, self.directory, self.ownership, self.nonce)
        self.restoring = Restoring(self.directory, self.ownership)
        self.checkpoints = Checkpoints(
            self.shipping, self.mirror, self.uploads, self.nonce, self._depose, self._look_for_gone
        )
        self.offloading = Offloading(
            self.directory, self.ownership, self.shipping, self.uploads, self.checkpoints, self._served
        )
        self.clearing = Clearing(
            self.store, self.directory, self.ownership, self.uploads, self.mirror, self._served, self._lists
        )
        self.is_ready = False
        self.serving: set[str] = set()
        self.untaken: dict[str, str] = {}
        """Why partitions are not in the journal yet; the next look tries again."""
        self._known: dict[str, dict[str, int]] = {}
        """How far each file of an adopted partition is queued, or shipped."""
        self._synced_ends: dict[str, dict[str, int]] = {}
        """How far files are synced here, of partitions that are being adopted."""
        self._told_gone: dict[str, set[str]] = {}
        """Files that nothing lists, of partitions whose shipped state is not known yet."""
        self._awaited_turn = 0
        self._dropping: set[tuple[str, int]] = set()
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
        return self.shipping.read_failure or next(iter(tuple(self.uploads.disk_failures.values())), "")

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
            if file not in known and not self.directory.has(partition, file):
                continue  # a former owner tells of it late, whose directory was replaced meanwhile
            if end > begin:
                known[file] = end
                self.shipping.queue(now, Append(partition, file, begin), end - begin)
        turn = self.shipping.turn
        if is_awaited:
            self._awaited_turn = turn
        return turn

    def gone(self, now: float, partition: str, files: Sequence[str]) -> None:
        """Queue that nothing lists these files; they are removed when that is shipped."""
        known, told = self._known.get(partition), self._synced_ends.get(partition, {})
        for file in files:
            told.pop(file, None)
        if known is None and files and (not self.is_ready or partition in self.mirror):
            # Removed before the journal says so, they would be there again after a takeover.
            self._told_gone.setdefault(partition, set()).update(files)
            return
        shipped = tuple(
            f for f in files if (partition, f) not in self.clearing.going and self._lists(partition, f)
        )
        for file in files:
            (known or {}).pop(file, None)
        if shipped:
            self.clearing.going.update((partition, file) for file in shipped)
            self.shipping.queue(now, Append(partition, "", 0, mark=("gone", shipped)))
        unknown = tuple(file for file in files if (partition, file) not in self.clearing.going)
        self.directory.unlink_files(partition, unknown)

    def _lists(self, partition: str, file: str) -> bool:
        """Return whether a reader of the journal finds a file there, or will."""
        mirror = self.mirror.get(partition)
        return file in self.files_of(partition) or (mirror is not None and file in mirror.files)

    def drop(self, partition: str) -> None:
        """Queue that a partition is no more; its rest goes when that is shipped.

        A life that is not ready does it once it is: until it knows what is shipped the note has to stay.
        """
        if self.is_ready and partition in self.directory.partitions():
            self._tasks.append(self._dropped(partition))

    def _dropped(self, partition: str) -> Task[None]:
        # Else what is being taken in would come into the journal behind that, without a directory.
        yield from until(lambda: partition not in self.claims.busy)
        if partition in self.mirror or partition in self._known:
            self._drop(partition, self.directory.term(partition))
        else:
            yield from self.clearing.dropped(partition)

    def forget(self, partition: str) -> None:
        """Have a partition of this directory leave the journal.

        That is noted here when it is shipped. A life that is not ready, or claims it just now, does nothing:
        who wants it asks until it is noted.
        """
        if not self.is_ready or partition in self.claims.busy:
            return
        self.untaken.pop(partition, None)
        self._synced_ends.pop(partition, None)
        self._told_gone.pop(partition, None)
        if self._known.pop(partition, None) is not None:
            self.serving.discard(partition)
            self.clearing.leaving.add(partition)
            self.shipping.queue(self._now, Append(partition, "", 0, mark=("forget",)))
        elif partition not in self.mirror and partition not in self.clearing.leaving:
            self.directory.leave_out(partition)  # it never came into the journal

    def files_of(self, partition: str) -> dict[str, int]:
        """Return how far the files of a partition are queued or shipped."""
        return self._known.get(partition, {})

    def knows(self, partition: str) -> bool:
        """Return whether the partition is in this journal, or on its way there."""
        return partition in self._known or partition in self.claims.busy

    def is_busy(self, partition: str) -> bool:
        """Return whether the partition is being adopted or claimed just now."""
        return partition in self.claims.busy

    def begin(self, partition: str) -> Task[None]:
        """Take a partition of this directory into the journal, and claim it.

        If that fails, it is `untaken`, and the next look begins it anew.
        """
        if not self.is_ready or self.knows(partition) or self._is_going(partition):
            return
        try:
            with self.claims.claiming(partition):
                yield from self._take_in(partition)
                yield from self.claims.claim(partition)
        except PulsarException as error:
            self.untaken[partition] = error.text
            return
        self.settle()

    def _is_going(self, partition: str) -> bool:
        """Return whether a partition's directory is about to be removed."""
        if partition not in self.directory.partitions():
            return False
        is_dropping = (partition, self.directory.term(partition)) in self._dropping
        return is_dropping or self.directory.is_dropped(partition)

    def _take_in(self, partition: str) -> Task[None]:
        # Else what is uploaded would be deleted behind that.
        yield from until(lambda: partition not in self.clearing.leaving)
        files = list(self._synced_ends.get(partition, {}))
        yield from self.uploads.from_disk(partition, partial(self._enter, partition, files))
        while True:
            told = self._synced_ends.get(partition)
            ends = dict(told or {})
            try:
                # Of one that nobody has told of, its files tell.
                packed = yield from self.uploads.adoption(partition, None if told is None else ends)
                break
            except JournalDamaged:
                # Its owner goes on writing: a file that was replaced or trimmed meanwhile is gone.
                if ends.keys() <= self._synced_ends.get(partition, {}).keys():
                    raise
        self._queue_adoption(partition, packed)
        self.untaken.pop(partition, None)
        told = self._synced_ends.get(partition, {})
        self._take_told(partition)
        self.gone(self._now, partition, [file for file in ends if file not in told])
        yield from self.until_shipped()

    def _enter(self, partition: str, files: list[str]) -> None:
        try:
            self.directory.enter(partition, files)
        except FileNotFoundError:
            raise ServiceUnitNotReady(f"partition {partition} is not here any more") from None

    def _begin_untaken(self) -> None:
        here = set(self.directory.partitions())
        for partition in sorted(self.untaken):
            if self.knows(partition) or partition not in here or self.directory.is_dropped(partition):
                del self.untaken[partition]
            else:
                self._tasks.append(self.begin(partition))

    def start(self) -> Task[None]:
        """Close the former life, compare, ship what is only here, and then be ready."""
        found = yield from walk(self.store, JournalObject(self.nonce(), NEXT, self.life))
        if not (found.is_sealed or found.is_foreign):
            for partition, state in found.states.items():
                mend = partial(self.directory.mend_term, partition, state.term, state.has_left(state.term))
                yield from self.uploads.from_disk(partition, mend)
        if found.is_sealed or found.is_foreign or (yield from self._lacks(found.states)):
            self._depose(is_set_aside=True)
            return
        self.checkpoints.index_number = found.index_number
        self.mirror.update(found.states)
        for state in self.mirror.values():
            for file in state.files.values():
                file.tail = None
        for partition in sorted(self.directory.partitions()):
            if self.directory.is_dropped(partition):
                continue
            yield from self.uploads.from_disk(partition, partial(self.directory.recover, partition))
            try:
                yield from self._ship_missing(partition)
            except PulsarException as error:
                # Its files cannot be read: it alone is not shipped, and not served.
                self.untaken[partition] = error.text
                self._known.pop(partition, None)
            else:
                # Receipts would not wait for what no manifest names yet, were it queued when this is served.
                self._take_told(partition)
        yield from self.until_shipped()
        yield from self.ownership.read()
        self.is_ready = True
        self._begin_told()
        self.settle()

    def _take_told(self, partition: str) -> None:
        """Queue what was told of a partition before its shipped state was known."""
        self.tell(self._now, partition, self._synced_ends.pop(partition, {}), is_awaited=True)
        self.gone(self._now, partition, sorted(self._told_gone.pop(partition, ())))

    def _begin_told(self) -> None:
        """Drop what was removed, and begin what came, before this life was ready."""
        for partition in sorted(self.directory.partitions()):
            if self.directory.is_dropped(partition):
                self.drop(partition)
            elif partition not in self._known:
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
        yield from self.ownership.read()
        self.settle()
        self._begin_untaken()
        yield from self.ownership.snapshot()

    def depart(self, partition: str) -> Task[None]:
        """Have a partition leave that nobody serves any more.

        Its files are final. Raises ServiceUnitNotReady if it is not ours
        to leave. It may be repeated.
        """
        term = self.directory.term(partition)
        is_left = term in self.directory.left(partition)
        if not self.is_ready or partition in self.claims.busy or not (is_left or partition in self.serving):
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
        yield from self.ownership.read()
        if self.shipping.is_deposed:
            raise ServiceUnitNotReady(f"partition {partition} was taken over meanwhile")
        self._check_readable(partition)

    def _check_readable(self, partition: str) -> None:
        if (why := self.shipping.unreadable.get(partition)) is not None:
            raise ServiceUnitNotReady(f"partition {partition} is shipped no further, since {why}")

    def adopt(self, partition: str, source: CatalogEntry) -> Task[None]:
        """Restore, ship and claim a partition that was left, or whose owner is sealed."""
        if not self.is_ready or partition in self.claims.busy or partition in self.serving:
            return
        if self.restoring.is_newer(partition, source):
            return
        with self.claims.claiming(partition):
            state = yield from self.restoring.restored(partition, source)
            if state is None:
                return
            self.directory.install(partition, source.term + 1)
            packed = yield from self.uploads.adoption(partition, restored=state)
            self._queue_adoption(partition, packed)
            yield from self.until_shipped()
            yield from self.claims.claim(partition)
        self.settle()

    def take(self, partition: str) -> Task[str]:
        """Own a partition that left, as it was shipped.

        Returns the store that owns it then.
        """
        yield from until(lambda: partition not in self.claims.busy)  # somebody has asked for it before
        yield from self.ownership.read()
        try:
            yield from self.adopt(partition, self.ownership.owner(partition))
        finally:
            self.restoring.forget()
        yield from self.ownership.read()
        return self.ownership.owner(partition).store

    def take_back(self, partition: str) -> Task[str]:
        """Own a partition again that left, if nobody else does by now.

        Returns the store that owns it then. Raises ServiceUnitNotReady while this life cannot have it back:
        opened before that, the partition would give no receipts.
        """
        if self._is_left(partition) and partition in self.mirror and not self.mirror[partition].left:
            yield from self.depart(partition)  # it was broken off before that was shipped
        owner = yield from self.take(partition)
        if owner == self.store and self._is_left(partition):
            raise ServiceUnitNotReady(f"partition {partition} is not taken back yet: ask again")
        return owner

    def _is_left(self, partition: str) -> bool:
        return partition in self.directory.partitions() and bool(self.directory.left(partition))

    def checkpoint(self) -> Task[bool]:
        """Write an index unless one is under way; return whether it was written."""
        if not self.is_ready:
            return False
        return (yield from self.checkpoints.run())

    def put_in_pieces(self, partition: str) -> Task[int]:
        """Ship a partition, and make pieces of the ends of its files.

        Returns how many bytes have come meanwhile: so much is left to ship and read when it leaves.
        """
        yield from self.until_shipped()
        if self.is_ready:  # else the mirror is not known yet
            # An index that is under way may have begun before the last of it was shipped.
            yield from self.checkpoints.alone(self.checkpoints.tries())
        mirror = self.mirror.get(partition)
        bases = {} if mirror is None else {name: file.base for name, file in mirror.files.items()}
        lengths, inline_bytes = self.files_of(partition), self.uploads.inline_bytes
        return sum(max(0, end - bases.get(name, 0) - inline_bytes) for name, end in lengths.items())

    def until_shipped(self) -> Task[None]:
        """Wait until everything that was queued so far is in the prefix."""
        yield Shipped(self.shipping.turn)

    def _look_for_gone(self) -> None:
        """Queue which cursors are gone: they go with their subscriptions, and nobody tells of that."""
        for partition, known in self._known.items():
            cursors = [file for file in known if "/" in file and not self.directory.has(partition, file)]
            gone = [file for file in cursors if self.directory.is_superseded(partition, file)]
            self.gone(self._now, partition, gone)

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
            differs = yield from self.uploads.from_disk(
                partition, partial(self._differs, partition, name, file)
            )
            if differs and not self.directory.is_superseded(partition, name):
                return True
        return False

    def _differs(self, partition: str, name: str, file: FileState) -> bool:
        if (pieces := self.directory.offloaded(partition, name)) is not None:
            # A damaged note costs its own ledger: what it stands for is in the object store as before.
            return bool(pieces) and pieces[-1][1] < file.length
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
            packed = yield from self.uploads.adoption(partition)
            self._queue_adoption(partition, packed)
            return
        lengths = yield from self.uploads.from_disk(partition, partial(self.directory.lengths, partition))
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
        # Its owner may be about to list a segment, which it told before: only the owner removes what is here.
        self.gone(now, partition, [file for file in known if not self.directory.has(partition, file)])

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
            if partition in self.claims.busy or partition in self.serving:
                continue
            is_here, owner = partition in here, self.ownership.owner(partition)
            term = self.directory.term(partition) if is_here else self.mirror[partition].term
            if is_here and self.directory.is_dropped(partition):
                continue
            if (owner.store, owner.term) == (self.store, term):
                if partition in self._known and term not in self.directory.left(partition):
                    self._serve(partition)
            elif owner.term >= term:
                self._drop(partition, term)
            elif partition in self._known and self.store not in self.ownership.sealed:
                self._tasks.append(self._claim(partition))

    def _serve(self, partition: str) -> None:
        self.serving.add(partition)
        self._actions.append(Serve(partition))
        self._tasks.append(self.clearing.sweep(partition))

    def _drop(self, partition: str, term: int) -> None:
        self._known.pop(partition, None)
        self._told_gone.pop(partition, None)
        self.serving.discard(partition)
        if (partition, term) not in self._dropping:
            self._dropping.add((partition, term))
            self.shipping.queue(self._now, Append(partition, "", 0, mark=("drop", term)))

    def _claim(self, partition: str) -> Task[None]:
        if partition in self.claims.busy:
            return
        with self.claims.claiming(partition):
            yield from self.claims.claim(partition)
        self.settle()

    # ---- taking over
    def _queue_adoption(self, partition: str, packed: Any) -> None:
        state = PartitionState.unpack(packed, keeps_bytes=False)
        self._known[partition] = {name: file.length for name, file in state.files.items()}
        self.shipping.queue(self._now, Append(partition, "", 0, mark=("adopt", packed)))

    # ---- shipping and deletion
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
            self._tasks.append(self.clearing.forgotten(append.partition))
        elif append.mark[:1] == ("gone",):
            self._tasks.append(self.clearing.files(append.partition, append.mark[1]))
        elif append.mark[:1] == ("drop",):
            self._dropping.discard((append.partition, append.mark[1]))
            if self.directory.is_dropped(append.partition):
                self._tasks.append(self.clearing.dropped(append.partition))
            else:
                self.directory.remove(append.partition, append.mark[1])

    def _served(self, partition: str) -> PartitionState | None:
        """Return the shipped state of a partition, None unless it is served in that term."""
        mirror = self.mirror.get(partition)
        if mirror is None or self.shipping.is_deposed or partition in self.claims.busy:
            return None
        is_served = partition in self.serving and self.uploads.is_here(partition, mirror.term)
        return mirror if is_served else None

    def _depose(self, is_set_aside: bool = False) -> None:
        self.shipping.depose()
        self._actions.append(Deposed(is_set_aside))


def in_order(files: dict[str, int]) -> list[str]:
    """Return files in the order of shipping, cursors behind their logs."""
    return sorted(files, key=lambda f: (2 if ledger_of(f) is None else 0) - is_manifest(f))


def is_manifest(file: str) -> bool:
    """Return whether a file is a partition's manifest, one of any owner."""
    return file.startswith("manifest")


def seal(store: str, ownership: Ownership, nonce: Callable[[], bytes]) -> Task[None]:
    """End a store's journal for ever, and enter that in the catalog.

    Raises JournalDamaged if an object of it is missing, behind which nothing would be read.
    """
    yield from refuse_hole(store)
    yield from walk(store, JournalObject(nonce(), "sealed", 0))
    yield from ownership.read()
    while store not in ownership.sealed:
        yield from ownership.enter(CatalogEntry(nonce(), "sealed", store=store))
