"""Remembers the blocks that each producer incarnation has stored.

So a resent block is stored once, and gaps are noticed. Pure.

A producer numbers its entries 0, 1, 2, ... within an incarnation (a random u64). That is always on, whatever
the deduplication switch is: it makes lost replies, resends and reordered requests harmless.

Where the latest WINDOW_BLOCKS blocks of each are is remembered, also after a crash: snapshots hold all of
it, each checkpoint what came since the one before, and behind the last one the log itself is scanned. A
client has no more blocks than that written and unanswered, so what it repeats is answered with its position.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from pulsar_ray.format.block import BlockHeader
from pulsar_ray.managed_ledger.log.manifest.manifest_records import IncarnationRecord
from pulsar_ray.model.message_id import Position

WINDOW_BLOCKS = 4096
FORGET_AFTER_MS = 3_600_000
LONGEST_LOOK_MS = 60_000
"""The longest time between two searches for idle incarnations.

There is one search a second: beyond this time the clock was set back or forward.
"""


class New(NamedTuple):
    """The block is the next one."""


class Repeat(NamedTuple):
    """The block is stored and durable, there."""

    position: Position


class InFlight(NamedTuple):
    """The block is being written: the outcome of that write decides."""


class Gap(NamedTuple):
    """Blocks are missing before this one, or it contradicts a stored one.

    `expected` is the next entry_seq.
    """

    expected: int


class GivenUp(NamedTuple):
    """The incarnation was retired: its producer gave up on it."""


class NeverStored(NamedTuple):
    """The block was refused when it first came, and later blocks were stored without it.

    It must not be stored now.
    """


class Forgotten(NamedTuple):
    """The block is older than what is remembered: nobody knows whether it was stored."""


class Duplicate(NamedTuple):
    """The block was left out, because its messages had been stored before."""


Verdict = New | Repeat | InFlight | Gap | GivenUp | NeverStored | Forgotten | Duplicate

_NOWHERE = -1
"""The ledger id of a row that stands for blocks which were left out.

Its entry id is the highest sequence id that their producer had stored by then: of the blocks that were left
out, those up to there were duplicates, and the others were refused.
"""
NO_IDS = 1 << 63
"""In place of a sequence id where deduplication is off: above all of them."""


class _Incarnation:
    """An incarnation's last entry_seq and latest blocks.

    They stand in arrays: a tuple for each block takes six times more.
    """

    __slots__ = (
        "entry_ids",
        "first_seqs",
        "idle_since_ms",
        "last_seq",
        "ledger_ids",
        "saved_seq",
        "sessions",
    )

    def __init__(self, now_ms: int) -> None:
        self.last_seq = -1
        self.saved_seq = -1  # up to there the manifest knows where the blocks are
        self.sessions = 0
        self.idle_since_ms = now_ms
        self.first_seqs = array("Q")
        self.ledger_ids = array("q")
        self.entry_ids = array("q")

    def add(self, first_seq: int, entries: int, ledger_id: int, entry_id: int, stored_id: int) -> None:
        expected = self.last_seq + 1
        if first_seq < expected:
            return  # at recovery: a snapshot knows it already
        if first_seq > expected:
            # Blocks were refused, or are corrupt: a producer that repeats one must not receive a receipt.
            self._append(expected, _NOWHERE, stored_id)
        self._append(first_seq, ledger_id, entry_id)
        self.last_seq = first_seq + entries - 1
        if len(self.first_seqs) >= 2 * WINDOW_BLOCKS:
            self.keep_last(WINDOW_BLOCKS)

    def _append(self, first_seq: int, ledger_id: int, entry_id: int) -> None:
        self.first_seqs.append(first_seq)
        self.ledger_ids.append(ledger_id)
        self.entry_ids.append(entry_id)

    def keep_last(self, blocks: int) -> None:
        for column in (self.first_seqs, self.ledger_ids, self.entry_ids):
            del column[: max(len(column) - blocks, 0)]

    def take_back(self, first_seq: int) -> None:
        while self.first_seqs and self.first_seqs[-1] >= first_seq:
            self.first_seqs.pop()
            self.ledger_ids.pop()
            self.entry_ids.pop()
        self.last_seq = min(self.last_seq, first_seq - 1)

    def columns(self, behind_seq: int) -> tuple[bytes, bytes, bytes]:
        """The blocks behind an entry_seq, as far as they are remembered in a record."""
        start = max(bisect_right(self.first_seqs, behind_seq), len(self.first_seqs) - WINDOW_BLOCKS)
        return (
            self.first_seqs[start:].tobytes(),
            self.ledger_ids[start:].tobytes(),
            self.entry_ids[start:].tobytes(),
        )

    def extend(self, last_seq: int, first_seqs: bytes, ledger_ids: bytes, entry_ids: bytes) -> None:
        """Take over `columns`; unless they follow on the blocks known so far, those are forgotten."""
        if last_seq <= self.last_seq:
            return
        added = array("Q", first_seqs)
        start = bisect_right(added, self.last_seq)
        if start == len(added) or added[start] != self.last_seq + 1:
            self.keep_last(0)
        self.first_seqs += added[start:]
        self.ledger_ids += array("q", ledger_ids)[start:]
        self.entry_ids += array("q", entry_ids)[start:]
        self.last_seq = self.saved_seq = last_seq
        if len(self.first_seqs) >= 2 * WINDOW_BLOCKS:
            self.keep_last(WINDOW_BLOCKS)

    def find(
        self, entry_seq: int, rows: int, last_id: int
    ) -> Repeat | Gap | NeverStored | Forgotten | Duplicate:
        index = bisect_right(self.first_seqs, entry_seq) - 1
        if index < 0:
            return Forgotten()
        if self.ledger_ids[index] == _NOWHERE:
            return Duplicate() if last_id <= self.entry_ids[index] else NeverStored()
        following = self.first_seqs[index + 1] if index + 1 < len(self.first_seqs) else self.last_seq + 1
        if self.first_seqs[index] != entry_seq or following != entry_seq + rows:
            # Resends keep their boundaries, so this is not the block that was stored.
            return Gap(self.last_seq + 1)
        return Repeat(Position(self.ledger_ids[index], self.entry_ids[index]))


class ProducerIncarnations:
    """All incarnations of one partition."""

    def __init__(self) -> None:
        self._known: dict[int, _Incarnation] = {}
        self._retired: set[int] = set()
        self._touched: set[int] = set()
        self._in_flight: dict[int, int] = {}  # first entry_seq being written
        self._looked_ms: int | None = None

    def __len__(self) -> int:
        return len(self._known)

    def knows(self, incarnation: int) -> bool:
        """Whether the entries of an incarnation are remembered.

        An attach that names a forgotten one is to be refused.
        """
        return incarnation in self._known

    def last_entry_seq(self, incarnation: int) -> int:
        """The last entry_seq written, durable or in flight; -1 if there is none."""
        known = self._known.get(incarnation)
        return -1 if known is None else known.last_seq

    def precedes(self, incarnation: int, entry_seq: int) -> bool:
        """Whether this is the last entry that an incarnation has written, durable or not."""
        return self.last_entry_seq(incarnation) == entry_seq

    def classify(self, incarnation: int, entry_seq: int, rows: int, last_id: int = NO_IDS) -> Verdict:
        """Tell whether a block of `rows` entries is new, repeated, or to be refused.

        `last_id` is its last sequence id where deduplication is on.
        """
        if incarnation in self._retired:
            return GivenUp()
        known = self._known.get(incarnation)
        expected = 0 if known is None else known.last_seq + 1
        if entry_seq == expected:
            return New()
        if known is None or entry_seq + rows > expected:
            return Gap(expected)
        in_flight = self._in_flight.get(incarnation)
        if in_flight is not None and entry_seq >= in_flight:
            return InFlight()
        return known.find(entry_seq, rows, last_id)

    def record(
        self, header: BlockHeader, ledger_id: int, entry_id: int, now_ms: int, stored_id: int = -1
    ) -> None:
        """A block got its position and is being written; call it in order.

        `stored_id` is the highest sequence id that its producer has stored before, -1 if that is not known.
        """
        incarnation = header.incarnation
        known = self._known.get(incarnation)
        if known is None:
            known = self._open(incarnation, now_ms)
        known.idle_since_ms = now_ms
        known.add(header.entry_seq, header.entries, ledger_id, entry_id, stored_id)
        self._touched.add(incarnation)
        if incarnation not in self._in_flight:
            self._in_flight[incarnation] = header.entry_seq

    def keep(self) -> None:
        """Keep all that is recorded: it is durable."""
        self._in_flight.clear()

    def take_back(self) -> None:
        """Take back all blocks that are not confirmed, because their write failed.

        They may be sent, and recorded, again.
        """
        for incarnation, first_seq in self._in_flight.items():
            if (known := self._known.get(incarnation)) is not None:
                known.take_back(first_seq)
        self._in_flight.clear()

    def retire(self, incarnation: int, now_ms: int) -> None:
        """Refuse an incarnation from now on, until it is forgotten like any other.

        Its producer failed its pending messages and started a new one. It need not have stored anything.
        """
        self._open(incarnation, now_ms)
        self._retired.add(incarnation)

    def is_retired(self, incarnation: int) -> bool:
        return incarnation in self._retired

    def is_in_flight(self, incarnation: int) -> bool:
        """Whether a block of it is being written."""
        return incarnation in self._in_flight

    def is_past(self, incarnation: int, entry_seq: int) -> bool:
        """Whether a later entry than this one is written, or the incarnation was retired."""
        return incarnation in self._retired or self.last_entry_seq(incarnation) > entry_seq

    def is_away(self, incarnation: int, idle_ms: int, now_ms: int) -> bool:
        """Whether nobody has been attached with it, and nothing was written, for so long."""
        known = self._known.get(incarnation)
        return known is None or (not known.sessions and now_ms - known.idle_since_ms >= idle_ms)

    def open_session(self, incarnation: int, now_ms: int) -> None:
        """A producer is attached with it; it is not forgotten meanwhile."""
        self._open(incarnation, now_ms).sessions += 1

    def close_session(self, incarnation: int, now_ms: int) -> None:
        """The producer is gone; an hour later the incarnation is forgotten."""
        known = self._known.get(incarnation)
        if known is not None:
            known.sessions = max(known.sessions - 1, 0)
            known.idle_since_ms = now_ms

    def forget_idle(self, now_ms: int) -> list[int]:
        """Forget those without a session for an hour; returns them. To be called often.

        An hour by which the clock is set, or for which the machine sleeps, is none for a producer that
        will come back.
        """
        self._follow_clock(now_ms)
        idle = [
            incarnation
            for incarnation, known in self._known.items()
            if not known.sessions and now_ms - known.idle_since_ms >= FORGET_AFTER_MS
        ]
        for incarnation in idle:
            del self._known[incarnation]
            self._retired.discard(incarnation)
            self._touched.discard(incarnation)
        return idle

    def _follow_clock(self, now_ms: int) -> None:
        jump_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        self._looked_ms = now_ms
        if 0 <= jump_ms <= LONGEST_LOOK_MS:
            return
        for known in self._known.values():
            known.idle_since_ms = min(known.idle_since_ms + max(jump_ms, 0), now_ms)

    def take_touched(self) -> list[IncarnationRecord]:
        """Incarnations that wrote since the last call, with their blocks since then, for a checkpoint.

        Nothing may be in flight.
        """
        touched = []
        for incarnation in self._touched:
            known = self._known[incarnation]
            touched.append(IncarnationRecord(incarnation, known.last_seq, *known.columns(known.saved_seq)))
            known.saved_seq = known.last_seq
        self._touched.clear()
        return touched

    def put_back(self, taken: Iterable[IncarnationRecord]) -> None:
        """Return records of `take_touched` whose checkpoint was not written, for the next one."""
        for record in taken:
            known = self._known.get(record.incarnation)
            if known is not None:
                first = array("Q", record.first_seqs[:8])
                known.saved_seq = min(known.saved_seq, first[0] - 1 if first else known.saved_seq)
                self._touched.add(record.incarnation)

    def retired(self) -> list[int]:
        return sorted(self._retired)

    def snapshot(self) -> list[IncarnationRecord]:
        """Everything that must survive, also where the latest blocks are. Nothing is in flight."""
        return [
            IncarnationRecord(incarnation, known.last_seq, *known.columns(-1), self._idle_ms(known))
            for incarnation, known in self._known.items()
        ]

    def idle_times(self) -> list[IncarnationRecord]:
        """Return how long those without a session have been idle, for an owner that leaves.

        A partition that sleeps most of the time would never see the end of an hour.
        """
        return [
            IncarnationRecord(incarnation, -1, b"", b"", b"", idle_ms)
            for incarnation, known in self._known.items()
            if (idle_ms := self._idle_ms(known))
        ]

    def _idle_ms(self, known: _Incarnation) -> int:
        """How long it had been idle at the last look.

        Time without an owner is left out: nobody can come then.
        """
        if known.sessions or self._looked_ms is None:
            return 0
        return max(self._looked_ms - known.idle_since_ms, 0)

    def restore(self, record: IncarnationRecord, now_ms: int) -> None:
        """Take one over from a snapshot or checkpoint; it has no session."""
        self._looked_ms = now_ms
        known = self._open(record.incarnation, now_ms)
        known.idle_since_ms = now_ms - record.idle_ms
        known.extend(record.last_seq, record.first_seqs, record.ledger_ids, record.entry_ids)

    def restore_checkpoint(
        self, written: Iterable[IncarnationRecord], retired: Iterable[int], now_ms: int
    ) -> None:
        """Take over a checkpoint's record of everything before it."""
        for record in written:
            self.restore(record, now_ms)
        for incarnation in retired:
            self.retire(incarnation, now_ms)

    def _open(self, incarnation: int, now_ms: int) -> _Incarnation:
        known = self._known.get(incarnation)
        if known is None:
            known = self._known[incarnation] = _Incarnation(now_ms)
        return known
