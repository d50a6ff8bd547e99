"""Blocks with suspect rows: those that a consumer held when it crashed, and that nobody holds now."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from pulsar_ray.dispatch import row_segments
from pulsar_ray.dispatch.consumer import PendingBlock
from pulsar_ray.model.row_sets import RowSet


class SuspectQueue:
    """Blocks with suspects in the order of the log; empty unless `isolates_suspects` is on."""

    def __init__(self) -> None:
        self._blocks: SortedDict = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._blocks

    def blocks(self) -> Iterator[PendingBlock]:
        """The blocks, lowest first."""
        yield from self._blocks.values()

    def lowest(self) -> PendingBlock | None:
        """The lowest block with suspects."""
        return self._blocks.peekitem(0)[1] if self._blocks else None

    def first_free(self) -> PendingBlock | None:
        """The lowest block with a suspect that may go out: of a batch only while nobody has part of it."""
        return next((b for b in self.blocks() if not (b.is_batch and b.deliveries)), None)

    def add(self, block: PendingBlock, rows: RowSet, count: int) -> None:
        """Let rows that are nowhere wait as suspects, with this redelivery count."""
        if block.is_batch and block.suspects:
            # One entry has one count: rows that wait already get the new one.
            rows |= row_segments.rows_of(block.suspects)
            block.suspects.clear()
        row_segments.insert(block.suspects, rows, count)
        self._blocks[block.key] = block

    def take(self, block: PendingBlock, row: int | None = None) -> tuple[RowSet, int]:
        """Take one suspect row off a block, the first if none is named; with its redelivery count."""
        if row is None:
            rows, count = row_segments.take(block.suspects, 1)
            self._forget_if_empty(block)
        else:
            rows = 1 << row
            count = row_segments.count_of(block.suspects, row)
            self.remove(block, rows)
        return rows, count

    def remove(self, block: PendingBlock, rows: RowSet) -> None:
        """Rows of a block are suspect no more, as far as they were."""
        if block.suspects:
            row_segments.remove(block.suspects, rows)
            self._forget_if_empty(block)

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()

    def _forget_if_empty(self, block: PendingBlock) -> None:
        if not block.suspects:
            del self._blocks[block.key]
