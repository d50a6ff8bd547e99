"""Entries below `catalog/` say which store owns which partition, and which stores have ended.

They stand in order, each decided by a store that has read all before it.

A snapshot stands for the entries before it, which are deleted then. A deleted number looks like the next one
to be decided, so a small object, the fold, stays for ever and says that there is a snapshot (ADR 0127).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal.objects import (
    ENTRIES,
    FOLDS,
    SNAPSHOTS,
    CatalogEntry,
    CatalogSnapshot,
    catalog_key,
    fold_key,
    pack_entry,
    pack_fold,
    pack_snapshot,
    snapshot_key,
    unpack_entry,
    unpack_snapshot,
)
from pulsar_ray.journal.reading import create
from pulsar_ray.journal.requests import Delete, Get, ListKeys, Task, ask

NOBODY = CatalogEntry(b"", "owner")
LEDGERS_OF_A_TERM = 65_536
EPOCHS_OF_A_TERM = 1 << 20
ENTRIES_OF_A_SNAPSHOT = 1_000


def first_ledger(term: int) -> int:
    """Return the lowest ledger number that the owner of this term may give out."""
    return term * LEDGERS_OF_A_TERM


def first_epoch(term: int) -> int:
    """Return the number that owners of a partition's files count on from in this term.

    Those of a former term may have counted further than was shipped, and clients know their numbers.
    """
    return term * EPOCHS_OF_A_TERM


def first_term(ledger: int) -> int:
    """Return the first term of a log that had this ledger before its journal."""
    return max(1, ledger // LEDGERS_OF_A_TERM)


@dataclass
class Ownership:
    """One reader's knowledge of the owners of partitions.

    All readers of a bucket use the same `entries_of_a_snapshot`.
    """

    length: int = 0
    owners: dict[str, CatalogEntry] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)
    entries_of_a_snapshot: int = ENTRIES_OF_A_SNAPSHOT
    _due: CatalogSnapshot | None = None

    def owner(self, partition: str) -> CatalogEntry:
        """Return the last entry about a partition."""
        return self.owners.get(partition, NOBODY)

    def read(self) -> Task[None]:
        """Read what was decided since the last reading."""
        while True:
            first, end = self.length, self._end_of_fold(self.length)
            found = yield from self._entries(first, end)
            # Nothing counts before it is known that it was not written late, where entries were deleted.
            if (yield from ask(Get(fold_key(end)))) is not None:
                yield from self._read_snapshot()
                continue
            for entry in found[self.length - first :]:  # several tasks may be reading
                self._add(entry)
            if first + len(found) < end:
                return
            if self.length == end:
                self._due = self._as_snapshot()

    def _entries(self, first: int, end: int) -> Task[list[CatalogEntry]]:
        found: list[CatalogEntry] = []
        while len(found) < end - first:
            key = catalog_key(first + len(found))
            stored = yield from ask(Get(key))
            if stored is None:
                break
            found.append(unpack_entry(key, stored))
        return found

    def enter(self, entry: CatalogEntry) -> Task[None]:
        """Try to decide the next entry; the caller has read all before it.

        `owner` and `sealed` tell afterwards what was decided: somebody else may have been first, and whoever
        was away for long may have written where entries were deleted.
        """
        yield from create(catalog_key(self.length), pack_entry(entry))
        yield from self.read()

    def snapshot(self) -> Task[None]:
        """Write the snapshot that is due, and then delete what it stands for."""
        due, self._due = self._due, None
        if due is None:
            return
        key = snapshot_key(due.length)
        if (yield from create(key, pack_snapshot(due))) is not None:
            raise JournalDamaged(f"two contents of one snapshot: {key}")
        yield from self._fold(due.length)

    def _fold(self, length: int) -> Task[None]:
        known = set((yield from ask(ListKeys(FOLDS))))
        for end in range(self.entries_of_a_snapshot, length + 1, self.entries_of_a_snapshot):
            if fold_key(end) not in known:  # also of a snapshot that nobody has come to write
                yield from create(fold_key(end), pack_fold(end))
        entries = yield from ask(ListKeys(ENTRIES))
        yield Delete(tuple(name for name in entries if name < catalog_key(length)))
        snapshots = yield from ask(ListKeys(SNAPSHOTS))
        yield Delete(tuple(snapshots[:-1]))

    def _end_of_fold(self, number: int) -> int:
        """Return the end of the entries that are deleted together with this one."""
        return (number // self.entries_of_a_snapshot + 1) * self.entries_of_a_snapshot

    def _read_snapshot(self) -> Task[None]:
        while True:
            names = yield from ask(ListKeys(SNAPSHOTS))
            if not names:
                raise JournalDamaged(f"{SNAPSHOTS} is empty, though entries before it were deleted")
            stored = yield from ask(Get(names[-1]))
            if stored is not None:  # else a newer one has just replaced it
                break
        found = unpack_snapshot(names[-1], stored)
        if found.length > self.length:
            self.length, self._due = found.length, None
            self.owners = {entry.partition: entry for entry in found.owners}
            self.sealed = set(found.sealed)

    def _as_snapshot(self) -> CatalogSnapshot:
        owners = tuple(self.owners[partition] for partition in sorted(self.owners))
        return CatalogSnapshot(self.length, owners, tuple(sorted(self.sealed)))

    def _add(self, entry: CatalogEntry) -> None:
        self.length += 1
        if entry.kind == "owner":
            self.owners[entry.partition] = entry
        elif entry.kind == "sealed":
            self.sealed.add(entry.store)
