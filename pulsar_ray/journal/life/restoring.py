"""Restores partitions from other stores' journals into this directory's staging place."""

from __future__ import annotations

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.life import uploads
from pulsar_ray.journal.life.directory import Directory
from pulsar_ray.journal.objects import (
    CatalogEntry,
    ledger_of,
    pack_piece,
    piece_key,
    pieces_of,
    unpack_piece,
)
from pulsar_ray.journal.ownership import NOBODY, Ownership
from pulsar_ray.journal.partition_state import FileState, PartitionState
from pulsar_ray.journal.reading import Walk, create, walk
from pulsar_ray.journal.requests import Get, ListKeys, Task, ask, until


class Restoring:
    """Reads the journal of a sealed store once for all of its partitions."""

    def __init__(self, directory: Directory, ownership: Ownership) -> None:
        self._directory, self._ownership = directory, ownership
        self._sealed_walk: tuple[str, Walk] | None = None
        self._walking: set[str] = set()
        """Sealed stores whose journals are being read."""

    def forget(self) -> None:
        """Free what was read of a sealed store's journal, when all is adopted."""
        self._sealed_walk = None

    def is_newer(self, partition: str, source: CatalogEntry) -> bool:
        """Whether it is here in a later term: who asks is behind the time."""
        return partition in self._directory.partitions() and self._directory.term(partition) > source.term

    def restored(self, partition: str, source: CatalogEntry) -> Task[PartitionState | None]:
        """Stage a partition as its former owner shipped it, and return its state.

        It is None if the owner lives and did not let it go, or it has moved on. Raises JournalDamaged if
        something of it is missing.
        """
        if source == NOBODY:
            self._directory.discard_staged(partition)
            return PartitionState(0)
        found = yield from self._walked(source.store)
        state = found.states.get(partition)
        if state is None or state.term < source.term:
            return None
        if not found.is_sealed and not state.has_left(source.term):
            return None
        self._directory.discard_staged(partition)
        closed: dict[str, int] | None = None
        for name in sorted(state.files, key=lambda name: ledger_of(name) is not None):
            if ledger_of(name) is not None and closed is None:
                closed = self._directory.closed(partition, is_staged=True)  # the manifest came before
            is_closed = closed is not None and closed.get(name) == state.files[name].length
            if missing := (yield from self._stage(partition, name, state.files[name], is_closed)):
                yield from self._ownership.read()
                if self._ownership.owner(partition) == source:
                    raise JournalDamaged(
                        f"{missing} is not there: bring it back from the bucket's versions; `pulsar-ray "
                        "remote verify` names all that is missing"
                    )
                return None  # the partition has moved on
        return state

    def _walked(self, store: str) -> Task[Walk]:
        """Read a store's journal, once for all of its partitions if it is sealed.

        Nothing comes behind a seal.
        """
        yield from until(lambda: store not in self._walking)  # another partition of it is being adopted
        if self._sealed_walk is not None and self._sealed_walk[0] == store:
            return self._sealed_walk[1]
        if store in self._ownership.sealed:
            self._walking.add(store)
        try:
            found = yield from walk(store)
        finally:
            self._walking.discard(store)
        self._sealed_walk = (store, found) if found.is_sealed else None
        return found

    def _stage(self, partition: str, name: str, file: FileState, is_closed: bool) -> Task[str]:
        """Stage a file, a closed segment by reference; return the missing piece."""
        keys = [piece_key(partition, name, start, end) for start, end, _ in file.pieces]
        if keys and is_closed:
            there = yield from ask(ListKeys(pieces_of(partition, name)))
            if missing := set(keys).difference(there):
                return min(missing)
            yield from self._stage_by_reference(partition, name, file)
            return ""
        self._directory.stage(partition, name, b"")
        for key in keys:
            stored = yield from ask(Get(key))
            if stored is None:
                return key
            self._directory.stage(partition, name, unpack_piece(key, stored))
        self._directory.stage(partition, name, bytes(file.tail or b""))
        return ""

    def _stage_by_reference(self, partition: str, name: str, file: FileState) -> Task[None]:
        """Leave a closed segment in the object store, and stage its note."""
        while file.base < file.length:
            end = min(file.length, file.base + uploads.PIECE_BYTES)
            data = bytes((file.tail or b"")[: end - file.base])
            key = piece_key(partition, name, file.base, end)
            if (yield from create(key, pack_piece(data))) is not None:
                raise JournalDamaged(f"two contents of one piece: {key}")
            file.cover(end, checksum(data))
        self._directory.stage_note(partition, name, list(file.pieces))
