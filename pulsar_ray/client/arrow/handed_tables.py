"""The rows of tables that were handed out: to acknowledge one as it is takes no look at its columns."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pyarrow as pa

from pulsar_ray.client.received.block_rows import BlockRows


class HandedTables:
    """Knows a table for as long as it is alive and somebody has that very object; from any thread."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[pa.Table], Sequence[BlockRows]]] = {}

    def add(self, table: pa.Table, parts: Sequence[BlockRows]) -> pa.Table:
        """The same table, which consists of these rows."""
        key = id(table)
        self._known[key] = weakref.ref(table, lambda _: self._known.pop(key, None)), parts
        return table

    def rows_of(self, table: pa.Table) -> Sequence[BlockRows] | None:
        """The rows of a table that was handed out; None for any other, cut or filtered ones among them."""
        handed, parts = self._known.get(id(table), (None, None))
        return parts if handed is not None and handed() is table else None
