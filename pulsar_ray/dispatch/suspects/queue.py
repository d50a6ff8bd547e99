"""Blocks with suspect rows: a crashed consumer held them, and nobody does now."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import DispatchBlock
from pulsar_ray.model.row_sets import RowSet


class SuspectQueue:
    """Blocks with suspects in the order of the log; empty unless `isolates_suspects` is on."""

    def __init__(self) -> None:
        self._blocks: SortedDict = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._blocks

    def blocks(self) -> Iterator[DispatchBlock]:
        """The blocks, lowest first."""
        yield from self._blocks.values()

    def lowest(self) -> DispatchBlock | None:
        """The lowest block with suspects."""
        return self._blocks.peekitem(0)[1] if self._blocks else None

    def first_free(self) -> DispatchBlock | None:
        """The lowest block with a suspect that may go out.

        Of a batch one may only while nobody has part of it.
        """
        return next((b for b in self.blocks() if not (b.is_batch and b.deliveries)), None)

    def add(self, block: DispatchBlock, rows: RowSet, count: int) -> None:
        """Let rows that are nowhere wait as suspects, with this redelivery count."""
        if block.is_batch and block.suspects:
            # One entry has one count: rows that wait already get the new one.
            rows |= counted_rows.rows_of(block.suspects)
            block.suspects.clear()
        counted_rows.insert(block.suspects, rows, count)
        self._blocks[block.key] = block

    def take(self, block: DispatchBlock, row: int | None = None) -> tuple[RowSet, int]:
        """Take one suspect row off a block, with its redelivery count.

        It is the first if none is named.
        """
        if row is None:
            rows, count = counted_rows.take(block.suspects, 1)
            self._forget_if_empty(block)
        else:
            rows = 1 << row
            count = counted_rows.count_of(block.suspects, row)
            self.remove(block, rows)
        return rows, count

    def remove(self, block: DispatchBlock, rows: RowSet) -> None:
        """Rows of a block are suspect no more, as far as they were."""
        if block.suspects:
            counted_rows.remove(block.suspects, rows)
            self._forget_if_empty(block)

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()

    def _forget_if_empty(self, block: DispatchBlock) -> None:
        if not block.suspects:
            del self._blocks[block.key]
