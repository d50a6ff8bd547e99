"""Acknowledgments of messages that are on their way or in the receiver queue again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from pulsar_ray.client.acks.ack_tracker import AckBatch, AckTracker, entries_up_to, span_of
from pulsar_ray.client.acks.ignored_acks import IgnoredAcks
from pulsar_ray.client.acks.unacked_rows import UnackedRows
from pulsar_ray.client.acks.unanswered_requests import UnansweredRequests
from pulsar_ray.client.received.block_rows import PlacedRows
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet


class LateAcks:
    """Knows which rows of a delivery were acknowledged as rows of an earlier one.

    The consumer's lock guards it. The dispatcher does not repeat what it knows to be acknowledged: so an
    acknowledgment counts until it is answered, and then as long as something waits in the queue that was
    sent before.
    """

    def __init__(
        self, acks: AckTracker | IgnoredAcks, unacked: UnackedRows, requests: UnansweredRequests
    ) -> None:
        self._acks = acks
        self._unacked = unacked
        self._requests = requests
        self._confirmed: dict[tuple[int, int], RowSet] = {}

    def rows(self, ledger_id: int, first_entry_id: int, rows: RowSet, *, is_batch: bool) -> RowSet:
        """Those of a block's rows that were acknowledged, by whole entries."""
        count = 1 if is_batch else rows.bit_length()
        entries = self._acks.entries_in(ledger_id, first_entry_id, count)
        for request in self._requests.unanswered():
            if request.acknowledged is not None:
                entries |= _entries_in(request.acknowledged, ledger_id, first_entry_id, count)
        return (_rows(entries, rows, is_batch) | self._confirmed.get((ledger_id, first_entry_id), 0)) & rows

    def confirm(self, batch: AckBatch, waiting: Iterable[PlacedRows]) -> None:
        """Remember which rows that wait in the queue an acknowledgment names that is answered now.

        Before `UnackedRows` forgets them.
        """
        confirmed: dict[tuple[int, int], RowSet] = {}
        for ledger_id, first_entry_id, rows in waiting:
            key = (ledger_id, first_entry_id)
            is_batch = self._unacked.batch_size(*key) > 0
            entries = _entries_in(batch, *key, 1 if is_batch else rows.bit_length())
            known = self._confirmed.get(key, 0) | confirmed.get(key, 0) | _rows(entries, rows, is_batch)
            if known:
                confirmed[key] = known
        self._confirmed = confirmed

    def delivered(self, ledger_id: int, first_entry_id: int, rows: RowSet) -> None:
        """Rows were delivered once more, by a dispatcher that knows of no acknowledgment."""
        key = (ledger_id, first_entry_id)
        if self._confirmed and key in self._confirmed:
            self._confirmed[key] &= ~rows

    def clear(self) -> None:
        """Forget what was confirmed: nothing waits in the queue."""
        self._confirmed = {}


def _rows(entries: RowSet, rows: RowSet, is_batch: bool) -> RowSet:
    if is_batch:
        return rows if entries & 1 else 0
    return entries & rows


def _entries_in(batch: AckBatch, ledger_id: int, first: int, count: int) -> RowSet:
    """Which of `count` entries from `first` on are acknowledged as a whole, as bits."""
    end = first + count
    found = 0
    if batch.cumulative is not None:
        found |= entries_up_to(batch.cumulative, ledger_id, first, count)
    ranges = batch.ranges
    at = max(0, bisect_left(ranges, (ledger_id, first)) - 1)
    while at < len(ranges) and ranges[at] < (ledger_id, end):
        of_ledger, low, high = ranges[at]
        if of_ledger == ledger_id and high >= first:
            found |= span_of(low, high, first, count)
        at += 1
    for of_ledger, origin, data in batch.entry_bits:
        if of_ledger == ledger_id and origin < end and origin + 8 * len(data) > first:
            bits = int.from_bytes(data, "little")
            found |= bits >> (first - origin) if first > origin else bits << (origin - first)
    return found & row_sets.span(0, count)
