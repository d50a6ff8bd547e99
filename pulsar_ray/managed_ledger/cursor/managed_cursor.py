"""A subscription's acknowledgments: a mark-delete position, every hole above it, and its failures."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import NamedTuple

from sortedcontainers import SortedDict

from pulsar_ray.managed_ledger.cursor.redelivery_counts import RedeliveryCounts
from pulsar_ray.model import row_ranges, row_sets
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from pulsar_ray.model.position_ranges import PieceColumns, PositionRanges
from pulsar_ray.model.row_ranges import RowFailures, RowRanges


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

    def extend(self, ledger_id: int, last: int) -> None:
        """The entries up to `last` of a ledger exist.

        Cheap where it is the newest ledger.
        """
        if not self._ids or ledger_id > self._ids[-1]:
            before = self._before[-1] + self._lasts[-1] + 1 if self._ids else 0
            self._ids.append(ledger_id)
            self._lasts.append(last)
            self._before.append(before)
        elif ledger_id == self._ids[-1]:
            self._lasts[-1] = max(self._lasts[-1], last)
        elif last > self.last_entry_of(ledger_id):
            spans = dict(zip(self._ids, self._lasts, strict=True))
            self.replace(sorted({**spans, ledger_id: last}.items()))

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


_MANY = 128
_WIDE = 65_536
"""Keep less than `_MANY` sets of scattered entries as they came.

None of the sets is over more than `_WIDE` entries.
"""


class CursorChanges:
    """Collects changes; a cursor that is never stored collects nothing."""

    __slots__ = (
        "_deleted",
        "_is_recorded",
        "_scattered",
        "batches",
        "consumers",
        "counts",
        "has_suspects",
        "is_reset",
        "row_failures",
    )

    def __init__(self, is_recorded: bool) -> None:
        self._is_recorded = is_recorded
        self.is_reset = False
        self.has_suspects = False
        """Whether groups of suspects came or went."""
        self._deleted = PositionRanges()
        self._scattered: list[tuple[int, int, int]] = []
        """Scattered entries that are not in `_deleted` yet.

        Mark-delete will have passed most of them when they are asked for.
        """
        self.counts: list[tuple[int, int, int, int]] = []
        self.batches: dict[Position, RowRanges] = {}
        self.row_failures: dict[Position, RowFailures] = {}
        self.consumers: set[int] = set()
        """Ids of consumers that came or went; the cursor knows which."""

    def add_deleted(self, ledger_id: int, first: int, last: int) -> None:
        """Entries were acknowledged; those below mark-delete do not matter."""
        if self._is_recorded:
            self._deleted.add(ledger_id, first, last)

    def add_deleted_bits(self, ledger_id: int, origin: int, entries: int, mark_delete: Position) -> None:
        """Add deleted scattered entries: entry origin + n for each bit n that is set."""
        if self._is_recorded:
            self._scattered.append((ledger_id, origin, entries))
            if len(self._scattered) >= _MANY or entries.bit_length() > _WIDE:
                self._merge(mark_delete)

    def deleted_behind(self, mark_delete: Position) -> PositionRanges:
        """The entries behind mark-delete that were acknowledged."""
        self._merge(mark_delete)
        self._deleted.remove_up_to(mark_delete)
        return self._deleted

    def _merge(self, mark_delete: Position) -> None:
        scattered, self._scattered = self._scattered, []
        for ledger_id, origin, entries in scattered:
            if (ledger_id, origin + entries.bit_length() - 1) > mark_delete:
                self._deleted.add_bits(ledger_id, origin, entries)

    def add_count(self, ledger_id: int, first: int, last: int, count: int) -> None:
        """Entries have a new redelivery count."""
        if not self._is_recorded:
            return
        if self.counts:
            ledger, start, end, known = self.counts[-1]
            if ledger == ledger_id and end == first - 1 and known == count:
                # Of messages that fail one after the other.
                self.counts[-1] = (ledger, start, last, count)
                return
        self.counts.append((ledger_id, first, last, count))

    def set_batch(self, position: Position, rows: RowRanges) -> None:
        """All rows of a batch acknowledged durably by now."""
        if self._is_recorded:
            self.batches[position] = rows

    def set_row_failures(self, position: Position, failures: RowFailures) -> None:
        """All failures of a batch's messages by now."""
        if self._is_recorded:
            self.row_failures[position] = failures

    def add_consumer(self, incarnation: int) -> None:
        """A consumer came or went."""
        if self._is_recorded:
            self.consumers.add(incarnation)

    def set_suspects(self) -> None:
        """Groups of suspects came or went; the cursor knows them."""
        self.has_suspects = self._is_recorded

    def reset(self) -> None:
        """The cursor started over; what was acknowledged before does not count any more."""
        self.is_reset = True
        self._deleted.clear()
        self._scattered.clear()
        self.counts.clear()
        self.batches.clear()
        self.row_failures.clear()


SHOWN_RANGES = 100


def deleted_text(deleted: PositionRanges) -> str:
    """The ranges with their lower end open and their upper end closed, as "[(3:1..3:4],(3:7..3:9]]"."""
    shown = [
        f"({ledger_id}:{first - 1}..{ledger_id}:{last}]"
        for ledger_id, first, last in islice(deleted, SHOWN_RANGES + 1)
    ]
    if len(shown) > SHOWN_RANGES:
        shown[-1] = "..."
    return f"[{','.join(shown)}]"


@dataclass(frozen=True)
class CursorSubscription:
    """The part of a registry entry that must survive the loss of all metadata.

    The registry can be rebuilt from the cursors.
    """

    name: str
    is_durable: bool = True
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownConsumer:
    """A consumer that was attached: after a restart the dispatcher waits for it."""

    incarnation: int
    name: str
    consumer_type: int


class SuspectRows(NamedTuple):
    """Rows of which one may have ended a consumer, and the number of their origin."""

    origin: int
    rows: tuple[tuple[int, int, RowRanges], ...]
    """(ledger id, first entry id of a block, rows)."""


class ManagedCursor:
    """Pure state; `cursor_store` makes it durable. All acknowledgments are idempotent facts.

    Everything at or below `mark_delete` is acknowledged, `deleted` holds the entries above it that are,
    without a limit. Acknowledging a range costs the same whatever its length: a few microseconds in order,
    about 50 among 100,000 holes. Scattered entries cost by the block. A hole costs at most 18 bytes of memory
    and as many in a snapshot; where holes lie close together, 2 or less. Entries beyond the log's end cannot
    be acknowledged.
    """

    def __init__(self, subscription: CursorSubscription, mark_delete: Position = EARLIEST) -> None:
        self.subscription = subscription
        self.mark_delete = mark_delete
        self.ledgers = LedgerSpans()
        self.deleted = PositionRanges()
        self.counts = RedeliveryCounts()
        self.consumers: dict[int, KnownConsumer] = {}
        self.suspects: dict[int, SuspectRows] = {}
        """Groups of suspects by number."""
        self.generation = 0
        self.version = 0
        """Number that rises with every change.

        A change is durable once a flush of this version, or a later one, is.
        """
        self.changes = CursorChanges(subscription.is_durable)
        # Acknowledged rows by position of a batch entry: the durable ones, and all that are known.
        self._batch_acks: SortedDict = SortedDict()
        self._session_acks: SortedDict = SortedDict()

    def take_properties(self, properties: dict[str, str]) -> None:
        """Keep other properties for a registry that has to be rebuilt, with the next snapshot."""
        self.subscription = replace(self.subscription, properties=properties)

    # ---- acknowledging

    def acknowledge(self, ledger_id: int, first: int, last: int) -> int:
        """Acknowledge entries first..last of a ledger; returns how many were not before."""
        of_ledger, entry_id = self.mark_delete
        if ledger_id < of_ledger:
            return 0
        lowest = entry_id + 1 if ledger_id == of_ledger else 0
        first = max(first, lowest)
        last = min(last, self.ledgers.last_entry_of(ledger_id))
        if first > last:
            return 0
        # In order is the usual case: nothing becomes a hole.
        follows = first == lowest
        if ledger_id != of_ledger:
            follows = self.ledgers.after(self.mark_delete) == (ledger_id, first)
        if follows:
            added = last - first + 1
            if has_holes := self.deleted.entries > 0:
                added = sum(b - a + 1 for a, b in self.deleted.missing(ledger_id, first, last))
            self._move_mark_delete(Position(ledger_id, last))
            if has_holes:
                self._advance_over_deleted()
        else:
            added = self.deleted.add(ledger_id, first, last)
            if not added:
                return 0
            self.changes.add_deleted(ledger_id, first, last)
            self._forget(ledger_id, first, last)
        self.version += 1
        return added

    def acknowledge_bits(self, ledger_id: int, origin: int, entries: int) -> int:
        """Acknowledge entry origin + n for each bit n that is set.

        Returns how many of them were not acknowledged before.

        As `acknowledge` for each of them, at once: scattered entries cost by the thousand, not each.
        """
        start = 0
        if ledger_id <= self.mark_delete.ledger_id:
            if ledger_id < self.mark_delete.ledger_id:
                return 0
            start = self.mark_delete.entry_id + 1
        if origin < start:
            entries >>= start - origin
            origin = start
        room = max(self.ledgers.last_entry_of(ledger_id) + 1 - origin, 0)
        if entries.bit_length() > room:
            entries &= (1 << room) - 1
        added = self.deleted.add_bits(ledger_id, origin, entries)
        if not added:
            return 0
        self._forget_bits(ledger_id, origin, entries)
        self._advance_over_deleted()
        self.changes.add_deleted_bits(ledger_id, origin, entries, self.mark_delete)
        self.version += 1
        return added

    def acknowledge_rows(
        self, position: Position, rows: RowRanges, messages: int | None, is_durable: bool
    ) -> bool:
        """Acknowledge messages of a batch entry; returns whether that completed the entry.

        `is_durable`: batch index acknowledgment is on, so these rows are never delivered again. Otherwise
        they are only remembered until the process ends, to know when the entry is complete. With `messages`
        unknown (None) that is found out when the entry is read, and the rows are kept durably.
        """
        if self.is_acknowledged(position) or not self._exists(position):
            return False
        known = row_ranges.union(self.acknowledged_rows(position), rows)
        if messages is not None:
            known = row_ranges.intersect(known, row_ranges.all_rows(messages))
            if row_ranges.count(known) == messages:
                self.acknowledge(position.ledger_id, position.entry_id, position.entry_id)
                return True
        self._session_acks[position] = known
        if is_durable or messages is None:
            self._batch_acks[position] = row_ranges.union(self.durable_rows(position), rows)
            self.changes.set_batch(position, self._batch_acks[position])
            self.version += 1
        return False

    def acknowledge_up_to(self, position: Position) -> bool:
        """Acknowledge everything at or below an existing entry; anything else has no effect (False)."""
        if position <= self.mark_delete or not self._exists(position):
            return False
        self._move_mark_delete(position)
        self._advance_over_deleted()
        self.version += 1
        return True

    def acknowledge_below(self, position: Position) -> bool:
        """Acknowledge everything below an existing entry."""
        if not self._exists(position):
            return False
        before = self.ledgers.position_of(self.ledgers.count_up_to(position) - 2)
        return before is not None and self.acknowledge_up_to(before)

    def reset(self, mark_delete: Position) -> None:
        """Start over above `mark_delete`, forwards or backwards: holes, rows and counts are forgotten."""
        self.mark_delete = mark_delete
        self.restore_nothing()
        self.generation += 1
        self.changes.reset()
        self.version += 1

    # ---- what is left

    def is_acknowledged(self, position: Position) -> bool:
        """Whether an entry is acknowledged as a whole."""
        return position <= self.mark_delete or self.deleted.contains(*position)

    def missing(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """The closed ranges of entries first..last that are not acknowledged."""
        if ledger_id <= self.mark_delete.ledger_id:
            if ledger_id < self.mark_delete.ledger_id:
                return []
            first = max(first, self.mark_delete.entry_id + 1)
        return self.deleted.missing(ledger_id, first, last)

    def durable_rows(self, position: Position) -> RowRanges:
        """The rows of a batch entry that are never delivered again."""
        rows: RowRanges = self._batch_acks.get(position, ()) if self._batch_acks else ()
        return rows

    def acknowledged_rows(self, position: Position) -> RowRanges:
        """All rows of a batch entry known to be acknowledged, durably or not."""
        rows: RowRanges | None = self._session_acks.get(position) if self._session_acks else None
        return self.durable_rows(position) if rows is None else rows

    @property
    def marks_end(self) -> Position:
        """No entry behind this one is acknowledged, even in part, suspect, or has failed before."""
        if self._batch_acks or self._session_acks or self.counts.has_any or self.suspects:
            return LATEST
        return max(self.mark_delete, self.deleted.end) if self.deleted.entries else self.mark_delete

    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        above = self.ledgers.count() - self.ledgers.count_up_to(self.mark_delete)
        return above - self.deleted.entries

    def unacknowledged(self, index: int) -> Position | None:
        """The entry with `index` unacknowledged ones before it (for peek and skip), or None."""
        at, left = self.mark_delete, index
        for ledger_id, first, last in self.deleted:
            before = self.ledgers.count_up_to(Position(ledger_id, first - 1)) - self.ledgers.count_up_to(at)
            if left < before:
                break
            left -= before
            at = Position(ledger_id, last)
        return self.ledgers.position_of(self.ledgers.count_up_to(at) + left)

    # ---- the log it follows

    def set_ledgers(self, spans: Sequence[tuple[int, int]]) -> None:
        """Take the list of ledgers with their last entries; call it when the list changed."""
        self.ledgers.replace(spans)
        self._advance_over_deleted()

    # ---- failures and consumers

    def count_redelivery(self, ledger_id: int, first: int, last: int, count: int) -> None:
        """Entries first..last were redelivered `count` times by now."""
        for start, end in self.missing(ledger_id, first, last):
            self.counts.set(ledger_id, start, end, count)
            self.changes.add_count(ledger_id, start, end, count)
            self.version += 1

    def count_row_failures(self, position: Position, rows: RowRanges) -> None:
        """These messages of a batch entry failed once more."""
        if not self.is_acknowledged(position):
            self.changes.set_row_failures(position, self.counts.add_row_failures(position, rows))
            self.version += 1

    def remember_suspects(self, suspects: dict[int, SuspectRows]) -> None:
        """Groups of suspects came or went; these are all there are."""
        self.suspects = suspects
        self.changes.set_suspects()
        self.version += 1

    def remember_consumer(self, consumer: KnownConsumer) -> None:
        """The consumer may hold entries from now on.

        Flush before the consumer is notified of it.
        """
        if self.consumers.get(consumer.incarnation) != consumer:
            self.consumers[consumer.incarnation] = consumer
            self.changes.add_consumer(consumer.incarnation)
            self.version += 1

    def forget_consumer(self, incarnation: int) -> None:
        """The consumer holds nothing any more."""
        if self.consumers.pop(incarnation, None) is not None:
            self.changes.add_consumer(incarnation)
            self.version += 1

    # ---- restoring, for cursor_store

    def restore_nothing(self) -> None:
        """Forget holes, rows, counts and suspects."""
        self.suspects = {}
        self.deleted.clear()
        self.counts.clear()
        self._batch_acks.clear()
        self._session_acks.clear()

    def restore_batch(self, position: Position, rows: RowRanges) -> None:
        """Put back durably acknowledged rows of a batch entry."""
        if not self.is_acknowledged(position):
            self._batch_acks[position] = rows

    def restore_deleted(self, holes: Iterable[tuple[int, PieceColumns]], mark_delete: Position) -> None:
        """Put back the holes of each ledger, and the mark-delete position that goes with them."""
        for ledger_id, columns in holes:
            self.deleted.add_columns(ledger_id, columns)
            if self.counts.has_any or self._batch_acks or self._session_acks:
                for first, last, bits in columns.pieces():
                    if bits is None:
                        self._forget(ledger_id, first, last)
                    else:
                        self._forget_bits(ledger_id, first, bits)
        self._move_mark_delete(mark_delete)

    def batch_acks(self) -> Iterable[tuple[Position, RowRanges]]:
        """The durably acknowledged rows of each batch."""
        return self._batch_acks.items()  # type: ignore[no-any-return]

    # ---- inner moves

    def _exists(self, position: Position) -> bool:
        return 0 <= position.entry_id <= self.ledgers.last_entry_of(position.ledger_id)

    def _advance_over_deleted(self) -> None:
        """Let mark-delete swallow the holes that have no unacknowledged entry below them."""
        mark_delete = self.mark_delete
        while self.deleted.entries and (following := self.ledgers.after(mark_delete)) is not None:
            end = self.deleted.run_end(*following)
            if end is None:
                break
            mark_delete = Position(following.ledger_id, end)
            self.deleted.remove_up_to(mark_delete)
        if mark_delete != self.mark_delete:
            self._move_mark_delete(mark_delete)
            self.version += 1

    def _move_mark_delete(self, position: Position) -> None:
        self.mark_delete = position
        if self.deleted.entries:
            self.deleted.remove_up_to(position)
        if self.counts.has_any:
            self.counts.discard_up_to(position)
        for acks in (self._batch_acks, self._session_acks):
            while acks and acks.peekitem(0)[0] <= position:
                acks.popitem(0)

    def _forget(self, ledger_id: int, first: int, last: int) -> None:
        """Forget the rows and failures of entries that are acknowledged as a whole."""
        if self.counts.has_any:
            self.counts.discard(ledger_id, first, last)
        for acks in (self._batch_acks, self._session_acks):
            if acks:
                for position in list(acks.irange(Position(ledger_id, first), Position(ledger_id, last))):
                    del acks[position]

    def _forget_bits(self, ledger_id: int, origin: int, entries: int) -> None:
        if self.counts.has_any or self._batch_acks or self._session_acks:
            for start, end in row_sets.ranges_of(entries):
                self._forget(ledger_id, origin + start, origin + end - 1)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        mark_delete = self.mark_delete
        assert all((ledger, first) > mark_delete for ledger, first, _ in self.deleted), "hole below it"
        following = self.ledgers.after(mark_delete)
        assert following is None or not self.deleted.contains(*following), "mark-delete is behind a hole"
        assert self.backlog() >= 0, f"backlog {self.backlog()}"
        for acks in (self._batch_acks, self._session_acks):
            assert not any(self.is_acknowledged(position) for position in acks), "rows of a done entry"
        assert all(Position(ledger, last) > mark_delete for ledger, _, last, _ in self.counts)
