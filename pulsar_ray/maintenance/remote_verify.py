"""Verifies all that stores have shipped below a prefix of an object store; reads only.

A cluster may go on shipping meanwhile: what seems to be missing is looked for again from the newest index.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import JournalDamaged, PulsarException, RemoteStoreRefused
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.at_once import Reader
from pulsar_ray.journal.decisions import read as read_decisions
from pulsar_ray.journal.objects import (
    ENTRIES,
    NEXT,
    Place,
    journal_key,
    journal_prefix,
    ledger_of,
    piece_key,
    place_of,
    unpack_journal,
    unpack_piece,
)
from pulsar_ray.journal.ownership import Ownership
from pulsar_ray.journal.partition_state import FileState, PartitionState, apply
from pulsar_ray.journal.reading import ends_journal, has_passed, newest_index, stores_in_bucket
from pulsar_ray.journal.storage.object_store import ObjectStore
from pulsar_ray.journal.store_files import listed_files
from pulsar_ray.maintenance.partition_check import check_partition

MOST_FAULTS = 1000
"""So many are kept; the others are counted."""
LOOKS = 5
"""A fault has to be seen twice, since a living cluster deletes objects."""
AT_ONCE = 8
"""Pieces of 8 MiB that are read at the same time."""

FROM_VERSIONS = "bring it back from the bucket's versions or a copy of it"
SHIP_AGAIN = (
    f"{FROM_VERSIONS}; or, while a store serves the topic from its disk, set its `remote_durability` to off "
    "and back, which ships all of it anew"
)
PASSED = (
    f"{FROM_VERSIONS}; a store that runs passes the place by itself with its next index, and one whose disk "
    "is there ships the rest again when it starts (delete the object first if it is damaged); else all "
    "before this place can be restored with --from"
)


class Fault(NamedTuple):
    """An object that is not as it should be, and what to do about it."""

    object: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.object}: {self.reason}: {self.remedy}"


@dataclass
class RemoteFindings:
    """All that a look at a prefix has found."""

    faults: list[Fault] = field(default_factory=list)
    left_out: int = 0
    remarks: list[str] = field(default_factory=list)
    stores: int = 0
    ended: int = 0
    """Stores among them whose journal was ended for ever."""
    partitions: int = 0
    objects: int = 0
    """Objects that were read, and their bytes."""
    bytes: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def add(self, faults: Iterable[Fault]) -> None:
        """Keep faults, up to a bound."""
        for fault in faults:
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(fault)
            else:
                self.left_out += 1


@dataclass
class _Journal:
    """One look at a store's journal, from its newest index to its end."""

    states: dict[str, PartitionState] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    end: Place = field(default_factory=lambda: Place(0, 0))
    is_sealed: bool = False
    has_passed: bool = False
    """A newer index has passed this look meanwhile."""


def verify_remote(
    store: ObjectStore, *, is_deep: bool = False, progress: Callable[[int], None] = lambda _: None
) -> RemoteFindings:
    """Read all that counts below a prefix, and name what is missing or damaged.

    In memory are one store's journal behind its newest index, and some pieces. With `is_deep` each partition
    is restored into a temporary directory, one after the other, and all checksums of its blocks are checked
    there. `progress` is called with the bytes that were read. Raises RemoteStoreRefused if there is no
    journal, or the object store refuses us, and RemoteStoreUnavailable.
    """
    return _Verification(store, is_deep, progress).run()


class _Verification:
    def __init__(self, store: ObjectStore, is_deep: bool, progress: Callable[[int], None]) -> None:
        self._reader, self._is_deep = Reader(store, progress), is_deep
        self._found = RemoteFindings()
        self._ownership = Ownership()

    def run(self) -> RemoteFindings:
        stores = set(self._reader.run(stores_in_bucket()))
        if not stores and not self._reader.list(ENTRIES):
            raise RemoteStoreRefused("no store has shipped anything there: look at the address")
        self._check_decisions()
        self._check_catalog()
        owned: dict[str, set[str]] = {}
        for partition, entry in self._ownership.owners.items():
            owned.setdefault(entry.store, set()).add(partition)
        for name in sorted(stores | owned.keys()):
            self._check_store(name, owned.get(name, set()))
        self._found.objects, self._found.bytes = self._reader.objects, self._reader.bytes
        return self._found

    # ---- what the controller has decided
    def _check_decisions(self) -> None:
        try:
            self._reader.run(read_decisions())
        except JournalDamaged as error:
            self._found.add([_damaged("", error, FROM_VERSIONS)])

    # ---- the catalog of owners
    def _check_catalog(self) -> None:
        listed = self._reader.list(ENTRIES)
        try:
            self._reader.run(self._ownership.read())
        except JournalDamaged as error:
            self._found.add([_damaged("", error, FROM_VERSIONS)])
            return
        behind = [name for name in listed if int(name.rpartition("/")[2]) >= self._ownership.length]
        if behind:
            reason = f"is not there, though {len(behind)} later entries of the catalog are"
            remedy = f"{FROM_VERSIONS}: without it nobody knows later owners of partitions"
            self._found.add([Fault(f"{ENTRIES}{self._ownership.length:012d}", reason, remedy)])

    # ---- one store
    def _check_store(self, name: str, owned: set[str]) -> None:
        faults: list[Fault] | None = None
        for _ in range(LOOKS):
            journal = self._look(name)
            if journal.has_passed:
                continue
            before, seen = faults, {fault.object for fault in faults or ()}
            faults = [*journal.faults, *self._faults_of(name, journal, owned, seen)]
            if before is not None:
                faults = [fault for fault in faults if fault.object in seen]
            if before is not None or not faults:
                break
        if faults is None:
            self._found.remarks.append(f"store {name} makes indexes more quickly than it is read: ask again")
        self._found.add(faults or ())
        self._found.stores += 1
        self._found.ended += journal.is_sealed
        self._found.partitions += len(owned & journal.states.keys())

    def _look(self, name: str) -> _Journal:
        listed = [place_of(key) for key in self._reader.list(journal_prefix(name))]
        try:
            _, index = self._reader.run(newest_index(name))
        except JournalDamaged as error:
            return _Journal(faults=[_damaged("", error, PASSED)])
        journal = _Journal({p: PartitionState.unpack(packed) for p, packed in index.states.items()})
        self._read_on(name, index.start, journal)
        if not journal.is_sealed and not journal.faults:
            journal.faults += _missing_before(name, journal.end, listed)
        _, newest = self._reader.run(newest_index(name))
        if has_passed(newest, journal.end):
            journal.has_passed = True
        return journal

    def _read_on(self, name: str, place: Place, journal: _Journal) -> None:
        """Apply all objects from a place on, up to one that is absent or damaged."""
        while True:
            journal.end, key = place, journal_key(name, place)
            stored = self._reader.get(key)
            if stored is None:
                return
            try:
                item = unpack_journal(key, stored)
                if ends_journal(item):
                    journal.is_sealed = True
                    return
                for append in item.appends:
                    apply(journal.states, append)
            except JournalDamaged as error:
                journal.faults.append(_damaged(key, error, PASSED))
                return
            place = Place(item.life, 0) if item.kind == NEXT else Place(place.life, place.number + 1)

    def _faults_of(self, name: str, journal: _Journal, owned: set[str], seen: set[str]) -> Iterator[Fault]:
        """Yield the faults of a store's partitions that are its own by the catalog.

        With `seen` only those are looked for again.
        """
        for partition in sorted(owned & journal.states.keys()):
            state, entry = journal.states[partition], self._ownership.owner(partition)
            if state.term < entry.term:
                reason = f"has partition {partition} in term {state.term}, the catalog in {entry.term}"
                yield Fault(journal_prefix(name), reason, FROM_VERSIONS)
            elif faults := [
                *self._faulty_pieces(partition, state, seen),
                *self._unrestorable(partition, state),
            ]:
                yield from faults
            elif self._is_deep:
                yield from self._damages(partition, state)

    def _faulty_pieces(self, partition: str, state: PartitionState, seen: set[str]) -> Iterator[Fault]:
        pieces = (
            (key, end - start, total)
            for name, file in state.files.items()
            for start, end, total in file.pieces
            if (key := piece_key(partition, name, start, end)) in seen or not seen
        )
        with ThreadPoolExecutor(AT_ONCE, "verify") as threads:
            while batch := list(islice(pieces, 2 * AT_ONCE)):
                yield from filter(None, threads.map(lambda piece: self._fault_of_piece(*piece), batch))

    def _fault_of_piece(self, key: str, length: int, total: int) -> Fault | None:
        stored = self._reader.get(key)
        if stored is None:
            return Fault(key, "is not there", SHIP_AGAIN)
        try:
            data = unpack_piece(key, stored)
        except JournalDamaged as error:
            return _damaged(key, error, SHIP_AGAIN)
        if len(data) != length or checksum(data) != total:
            return Fault(key, "has other bytes than its index says", SHIP_AGAIN)
        return None

    # ---- restoring
    def _unrestorable(self, partition: str, state: PartitionState) -> Iterator[Fault]:
        """Yield what a partition's manifest lists and its files do not have."""
        if not state.files:
            return
        with tempfile.TemporaryDirectory(prefix="pulsar-ray-verify-") as folder:
            directory = Path(folder) / partition
            small = {name: file for name, file in state.files.items() if ledger_of(name) is None}
            subject = f"partition {partition}"
            try:
                restore_files(self._reader, partition, small, directory)
                listed = listed_files(directory)
            except (PulsarException, OSError) as error:
                yield Fault(subject, f"cannot be restored: {error}", SHIP_AGAIN)
                return
            if not listed:
                yield Fault(subject, "has no manifest among its files", SHIP_AGAIN)
            for name, end in listed.items():
                length = state.files[name].length if name in state.files else 0
                if length < end and ledger_of(name) is not None:
                    reason = f"{name} has {length:,} bytes, and its manifest lists {end:,}"
                    yield Fault(subject, reason, SHIP_AGAIN)

    def _damages(self, partition: str, state: PartitionState) -> Iterator[Fault]:
        """Restore a partition, and yield what `pulsar-ray verify` finds there."""
        with tempfile.TemporaryDirectory(prefix="pulsar-ray-verify-") as folder:
            directory = Path(folder) / partition
            restore_files(self._reader, partition, state.files, directory)
            for damage in check_partition(directory, "", lambda _: None).damages:
                if damage.path != str(directory / "epoch"):  # a restore makes it
                    remedy = "its store shipped it so: see `pulsar-ray verify` and `repair` there"
                    yield Fault(f"partition {partition}", str(damage), remedy)


def _damaged(key: str, error: JournalDamaged, remedy: str) -> Fault:
    found = (
        re.search(r"\b(index|catalog|snapshots|folds|decisions|copies|copied)/\S*", error.text)
        if not key
        else None
    )
    return Fault(found[0] if found else key or "the journal", error.text, remedy)


def _missing_before(name: str, end: Place, listed: list[Place]) -> Iterator[Fault]:
    """Yield that objects are there behind the first absent one."""
    later = [place for place in listed if place > end]
    if not later:
        return
    lives = len({place.life for place in later if place.life > end.life})
    of_life = sum(place.life == end.life for place in later)
    reason = f"is not there, though {len(later)} later objects are"
    if of_life and not lives:
        reason += " (deleted; or under way when the store died, and nothing behind it counts then)"
    yield Fault(journal_key(name, end), reason, PASSED)


def restore_files(reader: Reader, partition: str, files: dict[str, FileState], directory: Path) -> None:
    """Write files of a partition as the journal has them.

    Raises JournalDamaged if a piece is not there or damaged, OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            for start, end, _ in file.pieces:
                key = piece_key(partition, name, start, end)
                stored = reader.get(key)
                if stored is None:
                    raise JournalDamaged(f"{key} is not there")
                out.write(unpack_piece(key, stored))
            out.write(file.tail or b"")
