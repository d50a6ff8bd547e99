"""Decisions stand in the bucket in order, each by one who read all before."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsar_ray.journal.objects import CatalogEntry, catalog_key, pack_entry, unpack_entry
from pulsar_ray.journal.reading import create
from pulsar_ray.journal.requests import Get, Task, ask

NOBODY = CatalogEntry(b"", "owner")
LEDGERS_OF_A_TERM = 65_536


def first_ledger(term: int) -> int:
    """Return the lowest ledger number that the owner of this term may give out."""
    return term * LEDGERS_OF_A_TERM


@dataclass
class Catalog:
    """One reader's knowledge of the catalog."""

    length: int = 0
    owners: dict[str, CatalogEntry] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)

    def owner(self, partition: str) -> CatalogEntry:
        """Return the last entry about a partition."""
        return self.owners.get(partition, NOBODY)

    def read(self) -> Task[list[CatalogEntry]]:
        """Read what was decided since the last reading; return those entries."""
        news = []
        while stored := (yield from ask(Get(catalog_key(n := self.length)))):
            if n == self.length:  # several tasks may be reading
                news.append(self._add(unpack_entry(catalog_key(n), stored)))
        return news

    def enter(self, entry: CatalogEntry) -> Task[bool]:
        """Decide the next entry, unless somebody else does; the caller has read all before it."""
        other = yield from create(catalog_key(self.length), pack_entry(entry))
        yield from self.read()
        return other is None

    def _add(self, entry: CatalogEntry) -> CatalogEntry:
        self.length += 1
        if entry.kind == "owner":
            self.owners[entry.partition] = entry
        elif entry.kind == "sealed":
            self.sealed.add(entry.store)
        return entry
