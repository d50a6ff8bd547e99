"""Leaves closed files of served partitions to the object store alone, and brings them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.life.checkpoints import Checkpoints
from pulsar_ray.journal.life.directory import Directory
from pulsar_ray.journal.life.uploads import Uploads, large_pieces
from pulsar_ray.journal.objects import piece_key, pieces_of, unpack_piece
from pulsar_ray.journal.ownership import Ownership
from pulsar_ray.journal.partition_state import FileState, PartitionState
from pulsar_ray.journal.requests import Get, ListKeys, Shipped, Task, ask, until
from pulsar_ray.journal.shipping import Shipping


class Offloading:
    """Moves files of partitions that are served.

    `served` returns what is shipped of a partition, None if it is not served in that term.
    """

    def __init__(
        self,
        directory: Directory,
        ownership: Ownership,
        shipping: Shipping,
        uploads: Uploads,
        checkpoints: Checkpoints,
        served: Callable[[str], PartitionState | None],
    ) -> None:
        self._directory, self._ownership, self._shipping = directory, ownership, shipping
        self._uploads, self._checkpoints, self._served = uploads, checkpoints, served
        self._fetching: set[str] = set()
        """Partitions of which files are being brought back."""

    def offload(self, partition: str, files: Sequence[str]) -> Task[list[str]]:
        """Leave closed files to the object store alone, and return those.

        The pieces of each are there and in a durable index before it is removed here. Files of a partition
        that is not served, or that have gone meanwhile, are left out.
        """
        yield Shipped(self._shipping.turn)
        return (yield from self._checkpoints.alone(self._offloaded(partition, files)))

    def _offloaded(self, partition: str, files: Sequence[str]) -> Task[list[str]]:
        wanted = yield from self._covered(partition, files)
        if not wanted or not (yield from self._checkpoints.write()):
            return []
        return (yield from self._removed_here(partition, wanted))

    def fetch_back(self, partition: str, files: Sequence[str]) -> Task[list[str]]:
        """Bring offloaded files back to this directory, and return them.

        Those are left out that were trimmed meanwhile, or whose partition is another's by now. Raises
        JournalDamaged if an object is gone or damaged.
        """
        yield from until(lambda: partition not in self._fetching)  # else both would write the same file
        self._fetching.add(partition)
        try:
            done, is_here = list[str](), partition in self._directory.partitions()
            term = self._directory.term(partition) if is_here else 0
            for name in files:
                done += yield from self._fetch_back(partition, term, name)
            return done
        finally:
            self._fetching.discard(partition)

    def _fetch_back(self, partition: str, term: int, name: str) -> Task[list[str]]:
        pieces = self._offloaded_in(partition, term, name)
        if pieces == []:
            raise JournalDamaged(
                f"the note of {name} in partition {partition} is damaged, so nobody knows its pieces: "
                "`pulsar-ray verify` names it; truncate the topic behind that segment to go on without it"
            )
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
            self._directory.fetch_back(partition, name, start, data)
        if not pieces:
            return []
        self._directory.end_fetching(partition, name)
        return [name]

    def _offloaded_in(self, partition: str, term: int, name: str) -> list[tuple[int, int, int]] | None:
        return self._directory.offloaded(partition, name) if self._uploads.is_here(partition, term) else None

    def _is_anothers(self, partition: str, term: int) -> Task[bool]:
        """Whether somebody else owns the partition by now, and so may delete.

        It is asked before anything is called missing: who was taken over may not know it yet.
        """
        yield from self._ownership.read()
        owner = self._ownership.owner(partition)
        return (owner.store, owner.term) != (self._shipping.store, term)

    def _covered(self, partition: str, files: Sequence[str]) -> Task[list[str]]:
        """Upload the rest of some files; return those of which all is there."""
        covered, mirror = [], self._served(partition)
        if mirror is None:
            return []
        closed = self._directory.closed(partition)
        for name in files:
            file = mirror.files.get(name)
            if file is None or not file.length or closed.get(name) != file.length:
                continue
            if self._directory.offloaded(partition, name) is not None:
                continue
            whole = FileState(large_pieces(file.pieces, file.length), file.length, None)
            one = PartitionState(mirror.term, files={name: whole})
            if (yield from self._uploads.upload(partition, one, 0)) is None:
                continue
            if mirror is self._served(partition) and mirror.files.get(name) is file:
                file.pieces = whole.pieces
                covered.append(name)
        return covered

    def _removed_here(self, partition: str, files: list[str]) -> Task[list[str]]:
        """Remove files of which the index has all.

        Smaller pieces of them stay until the file is gone: who takes over may have read an older index.
        """
        removed, served = [], self._served(partition)
        for name in files:
            there = yield from ask(ListKeys(pieces_of(partition, name)))
            if served is None or served is not self._served(partition):
                break  # it was adopted anew meanwhile, or is served no more
            file = served.files.get(name)
            if file is None or file.base != file.length:
                continue
            keys = {piece_key(partition, name, start, end) for start, end, _ in file.pieces}
            if missing := keys.difference(there):
                if (yield from self._is_anothers(partition, served.term)):
                    break
                raise JournalDamaged(
                    f"{min(missing)} is not there although it was written: {name} stays here"
                )
            if self._directory.offload(partition, name, list(file.pieces)):
                removed.append(name)
        return removed
