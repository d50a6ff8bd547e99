"""Measures how much of a log lies above a position, by arithmetic over its ledgers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.model.message_id import Position

LedgerSize = tuple[int, int, int]
"""(ledger id, entries, bytes in its files)."""


def ledger_sizes(segments: Iterable[SegmentInfo]) -> list[LedgerSize]:
    """The ledgers that these segments, in order, make up."""
    sizes: list[LedgerSize] = []
    for segment in segments:
        before = 0
        if sizes and sizes[-1][0] == segment.ledger_id:
            before = sizes.pop()[2]
        sizes.append((segment.ledger_id, segment.last_entry_id + 1, before + max(0, segment.end_offset)))
    return sizes


class LogSizes:
    """Ledgers in order. A look-up costs one bisection, whatever the backlog."""

    def __init__(self, ledgers: Sequence[Sequence[int]]) -> None:
        self._ledgers = [(ledger_id, entries, size) for ledger_id, entries, size in ledgers]
        self._ids = [ledger_id for ledger_id, _, _ in self._ledgers]
        self._entries_up_to = list(accumulate((entries for _, entries, _ in self._ledgers), initial=0))
        self._bytes_up_to = list(accumulate((size for _, _, size in self._ledgers), initial=0))

    @property
    def total_entries(self) -> int:
        return self._entries_up_to[-1]

    @property
    def total_bytes(self) -> int:
        return self._bytes_up_to[-1]

    def above(self, position: Position, acknowledged: int = 0) -> tuple[int, int]:
        """Count the unacknowledged entries above a mark-delete position, and about how many bytes they take.

        `acknowledged` is how many above it are acknowledged one by one. Within a ledger bytes are shared out
        evenly, so the second is an estimate, as in Pulsar.
        """
        index = bisect_left(self._ids, position.ledger_id)
        entries = self.total_entries - self._entries_up_to[index]
        size = self.total_bytes - self._bytes_up_to[index]
        if index < len(self._ids) and self._ids[index] == position.ledger_id:
            _, held, held_bytes = self._ledgers[index]
            done = min(max(position.entry_id + 1, 0), held)
            entries -= done
            size -= held_bytes * done // held if held else 0
        left = max(0, entries - acknowledged)
        return left, size * left // entries if entries else 0
