from __future__ import annotations

import random
from itertools import chain

import pytest

from pulsar_ray.client.acks.ack_tracker import MAX_UNSIZED, WHOLE_ENTRY, AckBatch, AckTracker
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.row_sets import MAX_ENTRIES, of_ranges, ranges_in
from tests.unit.client.blocks import received


def test_neighbours_become_one_range() -> None:
    acks = AckTracker()
    for entry_id in range(1000):
        acks.add(3, entry_id)
    assert acks.count == 1000
    assert acks.drain() == AckBatch([(3, 0, 999)], [], None)
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


@pytest.mark.parametrize("seed", range(300))
def test_entries_in_any_order_are_named_once_each(seed: int) -> None:
    choose = random.Random(seed)
    acks, wanted = AckTracker(), set()
    span, ledgers = choose.choice((20, 500, 20_000, 10**6)), choose.choice((1, 1, 3))
    for _ in range(choose.randrange(1, choose.choice((3, 30, 300)))):
        ledger_id, first = choose.randrange(1, ledgers + 1), choose.randrange(span)
        count = choose.choice((1, 1, 1, 5, 30, 3000))
        if count > 100:
            acks.add_range(ledger_id, first, first + count - 1)
        else:
            for entry_id in range(first, first + count):
                acks.add(ledger_id, entry_id)
        wanted |= {(ledger_id, entry_id) for entry_id in range(first, first + count)}
    drained = acks.drain()
    assert drained is not None
    told = named(drained)
    assert len(told) == len(wanted)
    assert set(told) == wanted
    assert acks.drain() is None


def test_a_batch_is_acknowledged_once_all_its_messages_are() -> None:
    acks = AckTracker()
    acks.add_row(3, 5, 0, 3)
    acks.add_row(3, 5, 2, 3)
    assert acks.drain() is None
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 3),))) == of_ranges(((1, 2),))
    acks.add_row(3, 5, 2, 3)
    acks.add_row(3, 5, 1, 3)
    assert acks.drain() == AckBatch([(3, 5, 5)], [], None)
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 3),))) == of_ranges(((0, 3),))


def test_with_index_acks_the_rows_so_far_are_sent() -> None:
    acks = AckTracker(batch_index_ack=True)
    acks.add_row(3, 5, 0, 5)
    acks.add_row(3, 5, 3, 5)
    assert acks.drain() == AckBatch([], [(3, 5, ((0, 1), (3, 4)))], None)
    assert acks.drain() is None
    acks.add_rows(3, 5, [(0, 2)], 5)
    assert acks.drain() == AckBatch([], [(3, 5, ((0, 2), (3, 4)))], None)
    acks.add_rows(3, 5, [(2, 3), (4, 5)], 5)
    assert acks.drain() == AckBatch([(3, 5, 5)], [], None)


def test_rows_of_a_batch_of_unknown_size_are_sent_as_they_are() -> None:
    acks = AckTracker()
    acks.add_rows(3, 5, [(0, 2)])
    acks.add_rows(3, 5, [(1, 4)])
    assert acks.count == 4
    assert acks.drain() == AckBatch([], [(3, 5, ((0, 4),))], None)
    assert acks.drain() is None


def test_rows_of_unknown_size_are_left_out_when_their_batch_comes_and_complete_it() -> None:
    acks = AckTracker()
    acks.add_rows(3, 5, [(0, 2)])
    assert acks.drain() is not None
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 4),)), 4) == of_ranges(((2, 4),))
    acks.drain()
    acks.add_rows(3, 5, [(2, 4)], 4)
    assert acks.drain() == AckBatch([(3, 5, 5)], [], None)


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
    assert acks.drain() == AckBatch([], [], (3, 5, 1))


def test_the_furthest_cumulative_acknowledgment_counts() -> None:
    acks = AckTracker()
    for entry_id in (4, 9, 7):
        acks.add_cumulative(3, entry_id)
    assert acks.drain() == AckBatch([], [], (3, 9, WHOLE_ENTRY))
    assert acks.drain() is None


def test_cumulative_inside_a_batch_without_index_acks_stops_before_it() -> None:
    acks = AckTracker()
    acks.add_cumulative(3, 5, 1, 4)
    assert acks.drain() == AckBatch([], [], (3, 4, WHOLE_ENTRY))
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 4),))) == of_ranges(((2, 4),))
    acks.add_cumulative(3, 5, 3, 4)
    assert acks.drain() == AckBatch([], [], (3, 5, WHOLE_ENTRY))
    assert acks.outstanding_rows(3, 5, of_ranges(((0, 4),))) == of_ranges(((0, 4),))


def test_cumulative_inside_the_first_batch_of_a_ledger_covers_the_ledgers_before() -> None:
    acks = AckTracker()
    acks.add_cumulative(3, 0, 1, 4)
    assert acks.drain() == AckBatch([], [], (3, -1, WHOLE_ENTRY))


def test_cumulative_inside_a_batch_with_index_acks_names_the_row() -> None:
    acks = AckTracker(batch_index_ack=True)
    acks.add_cumulative(3, 5, 1, 4)
    acks.add_cumulative(3, 5, 0, 4)
    assert acks.drain() == AckBatch([], [], (3, 5, 1))
    acks.add_cumulative(3, 5, 2, 4)
    acks.add_cumulative(3, 5, WHOLE_ENTRY, 4)
    acks.add_cumulative(3, 5, 2, 4)
    drained = acks.drain()
    assert drained is not None
    assert drained.cumulative == (3, 5, WHOLE_ENTRY)


def test_cumulative_inside_a_shared_batch_sends_its_rows() -> None:
    acks = AckTracker()
    acks.share(3, 5)
    acks.add_cumulative(3, 5, 1, 4)
    assert acks.drain() == AckBatch([], [(3, 5, ((0, 2),))], (3, 4, WHOLE_ENTRY))


def test_cumulative_inside_a_batch_loses_no_row_behind_it() -> None:
    acks = AckTracker(batch_index_ack=True)
    acks.add_row(3, 5, 3, 5)
    acks.add_cumulative(3, 5, 1, 5)
    assert acks.drain() == AckBatch([], [(3, 5, ((0, 2), (3, 4)))], (3, 5, 1))


def test_rows_that_were_acknowledged_before_their_batch_was_shared_are_sent() -> None:
    acks = AckTracker()
    acks.add_row(3, 5, 0, 4)
    assert acks.drain() is None
    acks.share(3, 5)
    assert acks.drain() == AckBatch([], [(3, 5, ((0, 1),))], None)
    acks.share(3, 5)
    assert acks.drain() is None, "they were sent"


def test_cumulative_forgets_partial_batches_below_it() -> None:
    acks = AckTracker(batch_index_ack=True)
    acks.add_row(3, 5, 0, 4)
    acks.add_row(3, 6, 0, 4)
    acks.add_cumulative(3, 5)
    assert acks.drain() == AckBatch([], [(3, 6, ((0, 1),))], (3, 5, WHOLE_ENTRY))


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
    assert acks.drain() == AckBatch([(3, 4, 7)], [], None)


def named(drained: AckBatch | None) -> list[tuple[int, int]]:
    assert drained is not None
    ranges = chain(drained.ranges, chain.from_iterable(map(ranges_in, drained.entry_bits)))
    return [(ledger_id, entry_id) for ledger_id, a, b in ranges for entry_id in range(a, b + 1)]


@pytest.mark.parametrize("seed", range(20))
def test_messages_of_blocks_in_any_order(seed: int) -> None:
    choose = random.Random(seed)
    sizes = [choose.choice((1, 2, 5, 60)) for _ in range(4)]
    blocks, first = [], 7
    for size in sizes:
        blocks.append(received([b"x"] * size, is_batching=False, first_entry_id=first))
        first += size
    messages = [(block, row) for block in blocks for row in range(block.message_count)]
    choose.shuffle(messages)
    acks, wanted = AckTracker(), set()
    for block, row in messages[: choose.randint(1, len(messages))]:
        acks.add_message(block, row)
        wanted.add((3, block.first_entry_id + row))
    assert acks.count == len(wanted)
    told = named(acks.drain())
    assert len(told) == len(wanted)
    assert set(told) == wanted
    assert acks.drain() is None


@pytest.mark.parametrize("seed", range(100))
def test_messages_of_blocks_and_ids_together_are_named_once_each(seed: int) -> None:
    choose = random.Random(seed)
    blocks = [received([b"x"] * 60, is_batching=False, first_entry_id=first) for first in (7, 67, 5000)]
    acks, wanted = AckTracker(), set()
    for _ in range(choose.choice((3, 30, 150))):
        entry_id = choose.randrange(7, choose.choice((130, 10_000)))
        if choose.random() < 0.4:
            acks.add(choose.choice((2, 3)), entry_id)
            acks.add_range(3, entry_id, entry_id)
            wanted.add((3, entry_id))
        else:
            block, row = choose.choice(blocks), choose.randrange(60)
            acks.add_message(block, row)
            wanted.add((3, block.first_entry_id + row))
    told = [entry for entry in named(acks.drain()) if entry[0] == 3]
    assert len(told) == len(set(told))
    assert set(told) == wanted


def test_neighbouring_messages_of_several_blocks_are_one_range() -> None:
    acks = AckTracker()
    for first in (5, 8, 11):
        block = received([b"a", b"b", b"c"], is_batching=False, first_entry_id=first)
        for row in range(3):
            acks.add_message(block, row)
    assert acks.drain() == AckBatch([(3, 5, 13)], [], None)


@pytest.mark.parametrize(("rows", "told"), [(1000, 2), (8000, 10), (8192, 10)])
def test_scattered_messages_of_neighbouring_blocks_are_sent_together_within_bounds(
    rows: int, told: int
) -> None:
    acks = AckTracker()
    wanted = set()
    for first in random.Random(0).sample(range(0, 10 * rows, rows), 10):
        block = received([b"x"] * rows, is_batching=False, first_entry_id=first)
        for row in range(0, rows, 7):
            acks.add_message(block, row)
            wanted.add((3, first + row))
    drained = acks.drain()
    assert drained is not None
    assert not drained.ranges
    assert len(drained.entry_bits) == told
    assert all(len(data) <= MAX_ENTRIES // 8 for _, _, data in drained.entry_bits)
    assert named(drained) == sorted(wanted)


def test_a_message_that_is_acknowledged_again_does_not_send_its_batch_again() -> None:
    acks = AckTracker(batch_index_ack=True)
    batch = received([b"a", b"b", b"c"], first_entry_id=5)
    acks.add_message(batch, 1)
    assert acks.drain() == AckBatch([], [(3, 5, ((1, 2),))], None)
    acks.add_message(batch, 1)
    assert acks.drain() is None


class Sent:
    """What a dispatcher would have learnt from all requests so far."""

    def __init__(self) -> None:
        self.entries: set[tuple[int, int]] = set()
        self.rows: dict[tuple[int, int], set[int]] = {}

    def take(self, drained: AckBatch | None) -> None:
        if drained is None:
            return
        assert drained.ranges == sorted(drained.ranges)
        of_bits = (part for bits in drained.entry_bits for part in ranges_in(bits))
        for ledger_id, first, last in chain(drained.ranges, of_bits):
            self.entries |= {(ledger_id, entry_id) for entry_id in range(first, last + 1)}
        for ledger_id, entry_id, rows in drained.batch_rows:
            seen = self.rows.setdefault((ledger_id, entry_id), set())
            seen.update(row for first, end in rows for row in range(first, end))


def flag(acks: AckTracker, block: ReceivedBlock, first: int, end: int) -> None:
    """As a consumer acknowledges its messages one after the other."""
    for row in range(first, end):
        current = acks.current
        if block is current.block:
            current.flags[row] = 1
            acks.count += 1
        else:
            acks.add_message(block, row)


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
                if end - first == size and choose.random() < 0.5:
                    part = [b"x"] * size
                    acks.add_part(received(part, ledger_id=key[0], first_entry_id=key[1]), range(size))
                elif choose.random() < 0.5:
                    flag(acks, received([b"x"] * size, ledger_id=key[0], first_entry_id=key[1]), first, end)
                elif end == first + 1 or choose.random() < 0.5:
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


def test_a_whole_batch_counts_all_its_messages_once() -> None:
    acks = AckTracker()
    batch = received([b"a", b"b", b"c"], first_entry_id=5)
    acks.add_part(batch, range(3))
    assert acks.count == 3
    assert acks.drain() == AckBatch([(3, 5, 5)], [], None)
    assert acks.drain() is None


@pytest.mark.parametrize("row", range(3))
def test_a_whole_batch_of_which_a_row_was_acknowledged_before(row: int) -> None:
    acks = AckTracker()
    batch = received([b"a", b"b", b"c"], first_entry_id=5)
    acks.add_row(3, 5, row, 3)
    acks.add_part(batch, range(3))
    assert acks.count == 3
    assert acks.drain() == AckBatch([(3, 5, 5)], [], None)
