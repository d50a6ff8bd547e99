"""A store claims partitions in the bucket, one entry at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pulsar_ray.journal.life.directory import Directory
from pulsar_ray.journal.objects import CatalogEntry
from pulsar_ray.journal.ownership import NOBODY, Ownership
from pulsar_ray.journal.requests import Task, until


class Claims:
    """Knows which partitions are being adopted or claimed, and decides that they are ours."""

    def __init__(
        self, store: str, directory: Directory, ownership: Ownership, nonce: Callable[[], bytes]
    ) -> None:
        self._store, self._directory, self._ownership, self._nonce = store, directory, ownership, nonce
        self.busy: set[str] = set()
        """Partitions that are being adopted or claimed."""
        self._is_claiming = False

    @contextmanager
    def claiming(self, partition: str) -> Iterator[None]:
        """Keep others from adopting or claiming a partition meanwhile."""
        self.busy.add(partition)
        try:
            yield
        finally:
            self.busy.discard(partition)

    def claim(self, partition: str) -> Task[None]:
        """Decide, if it may be, that a partition is ours in its present term."""
        # Else each would write the next entry, and all but one in vain.
        yield from until(lambda: not self._is_claiming)
        self._is_claiming = True
        try:
            yield from self._ownership.read()
            while self.may_claim(partition):
                term = self._directory.term(partition)
                entry = CatalogEntry(self._nonce(), "owner", partition, self._store, term)
                yield from self._ownership.enter(entry)
        finally:
            self._is_claiming = False

    def may_claim(self, partition: str) -> bool:
        """Return whether the catalog, as it was read, leaves a partition to us."""
        if partition not in self._directory.partitions() or self._store in self._ownership.sealed:
            return False
        owner = self._ownership.owner(partition)
        # A log that was there before its journal may begin with a later term: see `first_term`.
        return owner == NOBODY or owner.term == self._directory.term(partition) - 1
