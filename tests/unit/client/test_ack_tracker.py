from __future__ import annotations

import random
from itertools import chain

from pulsar_ray.client.ack_tracker import MAX_UNSIZED, WHOLE_ENTRY, AckTracker, PendingAcks
from pulsar_ray.model.entry_sets import ranges_in
from pulsar_ray.model.row_sets import of_ranges
from tests.unit.client.blocks import received


def test_neighbours_become_one_range() -> None:
    acks = AckTracker()
    for entry_id in range(1000):
        acks.add(3, entry_id)
    assert acks.count == 1000
    assert acks.drain() == PendingAcks([(3, 0, 999)], [], None)
    assert acks.count == 0
    assert acks.drain() is None


def test_order_holes_ledgers_and_repeats() -> None:
    acks = AckTracker()
    for ledger_id, entry_id in ((3, 5), (3, 4), (3, 7), (4, 8), (3, 6), (3, 5), (3, 9)):
        acks.add(ledger_id, entry_id)
    acks.add_range(4, 9, 20)
    acks.add_range(5, 0, 1)
    drained = acks.drain()
    assert drained is not None
    assert drained.ranges == [(3, 4, 7), (3, 9, 9), (4, 8, 20), (5, 0, 1)]


def test_a_batch_is_acknowledged_once_all_its_messages_are() -> None:
    acks = AckTracker()
    acks.add_row(3, 5, 0, 3)
    acks.add_row(3, 5, 2, 3)
    assert acks.drain() is None
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 3),))) == of_ranges(((1, 2),))
    acks.add_row(3, 5, 2, 3)
    acks.add_row(3, 5, 1, 3)
    assert acks.drain() == PendingAcks([(3, 5, 5)], [], None)
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 3),))) == of_ranges(((0, 3),))


def test_with_index_acks_the_rows_so_far_are_sent() -> None:
    acks = AckTracker(batch_index_ack=True)
    acks.add_row(3, 5, 0, 5)
    acks.add_row(3, 5, 3, 5)
    assert acks.drain() == PendingAcks([], [(3, 5, ((0, 1), (3, 4)))], None)
    assert acks.drain() is None
    acks.add_rows(3, 5, [(0, 2)], 5)
    assert acks.drain() == PendingAcks([], [(3, 5, ((0, 2), (3, 4)))], None)
    acks.add_rows(3, 5, [(2, 3), (4, 5)], 5)
    assert acks.drain() == PendingAcks([(3, 5, 5)], [], None)


def test_rows_of_a_batch_of_unknown_size_are_sent_as_they_are() -> None:
    acks = AckTracker()
    acks.add_rows(3, 5, [(0, 2)])
    acks.add_rows(3, 5, [(1, 4)])
    assert acks.count == 4
    assert acks.drain() == PendingAcks([], [(3, 5, ((0, 4),))], None)
    assert acks.drain() is None


def test_rows_of_unknown_size_are_left_out_when_their_batch_comes_and_complete_it() -> None:
    acks = AckTracker()
    acks.add_rows(3, 5, [(0, 2)])
    assert acks.drain() is not None
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 4),)), 4) == of_ranges(((2, 4),))
    acks.drain()
    acks.add_rows(3, 5, [(2, 4)], 4)
    assert acks.drain() == PendingAcks([(3, 5, 5)], [], None)


def test_rows_of_unknown_size_are_remembered_within_bounds() -> None:
    acks = AckTracker()
    for entry_id in range(MAX_UNSIZED + 1):
        acks.add_rows(3, entry_id, [(0, 1)])
    acks.drain()
    both = of_ranges(((0, 2),))
    assert acks.outstanding_rows(3, 0, both, 2) == both
    assert acks.outstanding_rows(3, MAX_UNSIZED, both, 2) == of_ranges(((1, 2),))


def test_cumulative_inside_a_batch_of_unknown_size_names_the_row() -> None:
    acks = AckTracker()
    acks.add_cumulative(3, 5, 1)
    assert acks.drain() == PendingAcks([], [], (3, 5, 1))


def test_the_furthest_cumulative_acknowledgment_counts() -> None:
    acks = AckTracker()
    for entry_id in (4, 9, 7):
        acks.add_cumulative(3, entry_id)
    assert acks.drain() == PendingAcks([], [], (3, 9, WHOLE_ENTRY))
    assert acks.drain() is None


def test_cumulative_inside_a_batch_without_index_acks_stops_before_it() -> None:
    acks = AckTracker()
    acks.add_cumulative(3, 5, 1, 4)
    assert acks.drain() == PendingAcks([], [], (3, 4, WHOLE_ENTRY))
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 4),))) == of_ranges(((2, 4),))
    acks.add_cumulative(3, 5, 3, 4)
    assert acks.drain() == PendingAcks([], [], (3, 5, WHOLE_ENTRY))
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 4),))) == of_ranges(((0, 4),))


def test_cumulative_inside_the_first_batch_of_a_ledger_covers_the_ledgers_before() -> None:
    acks = AckTracker()
    acks.add_cumulative(3, 0, 1, 4)
    assert acks.drain() == PendingAcks([], [], (3, -1, WHOLE_ENTRY))


def test_cumulative_inside_a_batch_with_index_acks_names_the_row() -> None:
    acks = AckTracker(batch_index_ack=True)
    acks.add_cumulative(3, 5, 1, 4)
    acks.add_cumulative(3, 5, 0, 4)
    assert acks.drain() == PendingAcks([], [], (3, 5, 1))
    acks.add_cumulative(3, 5, 2, 4)
    acks.add_cumulative(3, 5, WHOLE_ENTRY, 4)
    acks.add_cumulative(3, 5, 2, 4)
    drained = acks.drain()
    assert drained is not None
    assert drained.cumulative == (3, 5, WHOLE_ENTRY)


def test_cumulative_forgets_partial_batches_below_it() -> None:
    acks = AckTracker(batch_index_ack=True)
    acks.add_row(3, 5, 0, 4)
    acks.add_row(3, 6, 0, 4)
    acks.add_cumulative(3, 5)
    assert acks.drain() == PendingAcks([], [(3, 6, ((0, 1),))], (3, 5, WHOLE_ENTRY))


def test_clear_forgets_what_was_not_sent_and_partial_batches() -> None:
    acks = AckTracker()
    acks.add(3, 1)
    acks.add_row(3, 5, 0, 2)
    acks.add_cumulative(3, 0)
    acks.clear()
    assert acks.drain() is None
    acks.add_row(3, 5, 1, 2)
    assert acks.drain() is None


def test_rows_of_blocks() -> None:
    batch = received([b"a", b"b"], first_entry_id=4)
    rows = received([b"c", b"d", b"e"], is_batching=False, first_entry_id=5)
    acks = AckTracker()
    acks.add_part(batch, [1])
    acks.add_part(rows, range(1, 3))
    acks.add_part(batch, range(1))
    acks.add_part(rows, [0])
    assert acks.drain() == PendingAcks([(3, 4, 7)], [], None)


class Sent:
    """What a dispatcher would have learnt from all requests so far."""

    def __init__(self) -> None:
        self.entries: set[tuple[int, int]] = set()
        self.rows: dict[tuple[int, int], set[int]] = {}

    def take(self, drained: PendingAcks | None) -> None:
        if drained is None:
            return
        assert drained.ranges == sorted(drained.ranges)
        of_bits = (part for bits in drained.entry_bits for part in ranges_in(bits))
        for ledger_id, first, last in chain(drained.ranges, of_bits):
            self.entries |= {(ledger_id, entry_id) for entry_id in range(first, last + 1)}
        for ledger_id, entry_id, rows in drained.batch_rows:
            seen = self.rows.setdefault((ledger_id, entry_id), set())
            seen.update(row for first, end in rows for row in range(first, end))


def test_against_a_naive_model() -> None:
    for seed in range(30):
        print("seed", seed)
        choose = random.Random(seed)
        sizes = {(ledger, entry): choose.choice([0, 1, 2, 9]) for ledger in (1, 2) for entry in range(40)}
        index_acks = choose.random() < 0.5
        acks = AckTracker(batch_index_ack=index_acks)
        rows: dict[tuple[int, int], set[int]] = {}
        entries: set[tuple[int, int]] = set()
        sent = Sent()
        for _ in range(400):
            key = choose.choice(list(sizes))
            size = sizes[key]
            if size == 0:
                acks.add(*key)
                entries.add(key)
            elif key not in entries:
                first = choose.randrange(size)
                end = choose.randint(first + 1, size)
                if end == first + 1 or choose.random() < 0.5:
                    for row in range(first, end):
                        acks.add_row(*key, row, size)
                else:
                    acks.add_rows(*key, [(first, end)], size)
                rows.setdefault(key, set()).update(range(first, end))
                if len(rows[key]) == size:
                    entries.add(key)
            if choose.random() < 0.1:
                sent.take(acks.drain())
        sent.take(acks.drain())
        assert sent.entries == entries
        partly = {key: acked for key, acked in rows.items() if key not in entries}
        seen = {key: acked for key, acked in sent.rows.items() if key not in entries}
        assert seen == (partly if index_acks else {})
