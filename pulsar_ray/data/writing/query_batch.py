"""Name the producers of a query's batch and number its rows (ADR 0042).

So each row is stored once, however often the batch is written.

Pure. A batch's rows are divided among tasks and partitions of a topic, always in the same way: a `Layout`.
Each pair of both has a producer name and running ids, so that deduplication knows what is stored. The layout
stands in the names: whoever writes the batch again finds it there, with other settings or a grown topic too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

from pulsar_ray.client.options.checks import MAX_SEQUENCE_ID, check_number, check_text
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError
from pulsar_ray.managed_ledger.log.producer_sequences import KEPT_PREFIX
from pulsar_ray.model.enums import HashingScheme

IDS_PER_BATCH = 1 << 32
MAX_BATCH_ID = MAX_SEQUENCE_ID // IDS_PER_BATCH - 1
MAX_TASKS = 4096
_PLACE = re.compile(r"(\d+)x(\d+)(m?)/(\d+)")
_HASHING = {"": HashingScheme.JavaStringHash, "m": HashingScheme.Murmur3_32Hash}
_MARKS = {scheme: mark for mark, scheme in _HASHING.items()}

KnownIds = Mapping[str, Mapping[str, int]]
"""The highest stored sequence id of each producer name, for each partition of a topic."""


class Layout(NamedTuple):
    """How a batch is divided among tasks, and by keys among partitions of the topic."""

    tasks: int
    partitions: int
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash


def query_prefix(query: str) -> str:
    """How the names of all producers of a query's writes begin.

    No other query's names begin so: whatever could end the query's name early is escaped.
    """
    check_text("name", query)
    if not query:
        raise InvalidConfiguration("name='' must have at least one character: it tells queries apart")
    return f"{KEPT_PREFIX}{quote(query, safe='')}/"


class QueryBatch(NamedTuple):
    """One batch of a query; ids of later batches are higher."""

    query: str
    batch_id: int

    @classmethod
    def checked(cls, query: str, batch_id: int) -> QueryBatch:
        """Make one of a user's arguments. Raises InvalidConfiguration for wrong ones."""
        query_prefix(query)
        check_number("batch_id", batch_id, 0, MAX_BATCH_ID)
        return cls(query, batch_id)

    @property
    def first_id(self) -> int:
        """The sequence id of the first row that a task sends to a partition."""
        return self.batch_id * IDS_PER_BATCH

    def layout_prefix(self, layout: Layout) -> str:
        """How the names of this query's producers with a layout begin."""
        return f"{query_prefix(self.query)}{layout.tasks}x{layout.partitions}{_MARKS[layout.hashing_scheme]}/"

    def producer_name(self, layout: Layout, task: int) -> str:
        """The name under which a task sends, to every partition."""
        return f"{self.layout_prefix(layout)}{task}"

    def rows_stored(self, last_id: int) -> int:
        """How many rows of this batch are stored where this is the highest sequence id."""
        return max(0, last_id - self.first_id + 1)

    def choose_layout(self, known: KnownIds, usual: Layout) -> Layout:
        """Return the layout that this batch was begun with, else the usual one.

        Raises NotAllowedError if a later batch has been begun: the ids of this one would all count as stored.
        """
        begun = usual
        for layout, last_id in self._layouts(known):
            newest = last_id // IDS_PER_BATCH
            if newest > self.batch_id:
                raise NotAllowedError(
                    f"batch {self.batch_id} of {self.query!r} comes after batch {newest} was begun on this "
                    "topic: ids must rise from batch to batch. Give it a higher batch_id, or another name"
                )
            if newest == self.batch_id:
                begun = layout
        return begun

    def former_layouts(self, known: KnownIds, layout: Layout) -> set[Layout]:
        """List layouts other than this batch's: nothing will be written with them again."""
        return {each for each, _ in self._layouts(known)} - {layout}

    def _layouts(self, known: KnownIds) -> Iterator[tuple[Layout, int]]:
        prefix = query_prefix(self.query)
        for ids in known.values():
            for name, last_id in ids.items():
                place = _PLACE.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
                if place is not None and last_id >= 0:
                    yield Layout(int(place[1]), int(place[2]), _HASHING[place[3]]), last_id
