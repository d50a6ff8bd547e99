"""Which entries exist: the ledgers of a managed ledger with their last entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from pulsar_ray.model.message_id import EARLIEST, Position


class LedgerSpans:
    """Ledgers in order, each with the entries from 0 to its last one.

    All but the newest are closed.

    A cursor needs it to move across ledger ends and to count its backlog. Looking up costs one bisection.
    """

    __slots__ = ("_before", "_ids", "_lasts")

    def __init__(self, spans: Sequence[tuple[int, int]] = ()) -> None:
        self._ids: list[int] = []
        self._lasts: list[int] = []
        self._before: list[int] = []  # entries in all earlier ledgers
        self.replace(spans)

    def replace(self, spans: Sequence[tuple[int, int]]) -> None:
        """Take a new list of (ledger id, last entry id or -1).

        ValueError if it is unsorted.
        """
        ids = [ledger_id for ledger_id, _ in spans]
        if any(a >= b for a, b in pairwise(ids)):
            raise ValueError(f"ledger ids are not ascending: {ids}")
        self._ids = ids
        self._lasts = [last for _, last in spans]
        self._before = [0] * len(ids)
        for i in range(1, len(ids)):
            self._before[i] = self._before[i - 1] + self._lasts[i - 1] + 1

    def extend(self, end: Position) -> None:
        """The entry `end` exists, and all before it in its ledger.

        Cheap where it is in the newest ledger.
        """
        if not self._ids or end.ledger_id > self._ids[-1]:
            before = self._before[-1] + self._lasts[-1] + 1 if self._ids else 0
            self._ids.append(end.ledger_id)
            self._lasts.append(end.entry_id)
            self._before.append(before)
        elif end.ledger_id == self._ids[-1]:
            self._lasts[-1] = max(self._lasts[-1], end.entry_id)
        elif end.entry_id > self.last_entry_of(end.ledger_id):
            spans = dict(zip(self._ids, self._lasts, strict=True))
            self.replace(sorted({**spans, end.ledger_id: end.entry_id}.items()))

    @property
    def end(self) -> Position:
        """The last entry; EARLIEST if there is none."""
        for ledger_id, last in zip(reversed(self._ids), reversed(self._lasts), strict=True):
            if last >= 0:
                return Position(ledger_id, last)
        return EARLIEST

    def last_entry_of(self, ledger_id: int) -> int:
        """The last entry of a ledger, -1 if the ledger is empty or unknown."""
        i = bisect_left(self._ids, ledger_id)
        return self._lasts[i] if i < len(self._ids) and self._ids[i] == ledger_id else -1

    def after(self, position: Position) -> Position | None:
        """The first existing entry above `position`, None if there is none yet."""
        ledger_id, entry_id = position
        i = bisect_left(self._ids, ledger_id)
        if i < len(self._ids) and self._ids[i] == ledger_id:
            if entry_id < self._lasts[i]:
                return Position(ledger_id, max(entry_id + 1, 0))
            i += 1
        for j in range(i, len(self._ids)):
            if self._lasts[j] >= 0:
                return Position(self._ids[j], 0)
        return None

    def count_up_to(self, position: Position) -> int:
        """How many existing entries lie at or below `position`."""
        i = bisect_right(self._ids, position.ledger_id) - 1
        if i < 0:
            return 0
        if self._ids[i] < position.ledger_id:
            return self._before[i] + self._lasts[i] + 1
        return self._before[i] + max(min(position.entry_id, self._lasts[i]) + 1, 0)

    def count(self) -> int:
        """How many entries exist."""
        return self._before[-1] + self._lasts[-1] + 1 if self._ids else 0

    def position_of(self, index: int) -> Position | None:
        """The entry with `index` existing entries before it, None beyond the end."""
        if not 0 <= index < self.count():
            return None
        i = bisect_right(self._before, index) - 1
        return Position(self._ids[i], index - self._before[i])
