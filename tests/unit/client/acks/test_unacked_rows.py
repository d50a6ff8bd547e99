from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pulsar_ray.client.acks.unacked_rows import DeclaredRows, UnackedRows
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import of_ranges, span
from pulsar_ray.session.packet import MAX_FIELDS_BYTES, decode_packet
from pulsar_ray.session.requests import OpenConsumer, decode_request, encode_request

LEDGER = 2**40
Model = dict[tuple[int, int], set[tuple[int, int]]]
"""(ledger id, first entry id) -> (entry id, row) of what is held."""


def opening(held: list[DeclaredRows]) -> OpenConsumer:
    return OpenConsumer(1, 2, "c", 2**60, 0, 0, False, True, 3, 4, held, None, "s", 5)


def test_what_is_held_is_declared_in_order() -> None:
    held = UnackedRows()
    held.add(LEDGER, 10, 5, span(0, 5), 5)
    held.add(LEDGER, 3, 1, span(0, 1), 1)
    held.add(LEDGER, 20, 1, span(0, 100), 100)
    held.remove_entries([(LEDGER, 11, 12)])
    held.remove_rows(LEDGER, 20, span(50, 60))
    assert held.declared()[0] == [
        (LEDGER, 3, ((0, 1),)),
        (LEDGER, 10, ((0, 1), (3, 5))),
        (LEDGER, 20, ((0, 50), (60, 100))),
    ]


def test_a_declaration_fits_into_a_packet_whatever_is_held() -> None:
    singles = UnackedRows()
    for entry_id in range(0, 200_000, 2):
        singles.add(LEDGER, entry_id, 1, span(0, 1), 1)
    fragments = UnackedRows()
    rows = of_ranges(tuple((row, row + 1) for row in range(7000, 8192, 2)))
    for entry_id in range(1000):
        fragments.add(LEDGER, 10_000 + entry_id, 1, rows, 8192)
    for held in (singles, fragments):
        packet = b"".join(encode_request(opening(held.declared()[0])))
        assert len(packet) < MAX_FIELDS_BYTES
        opened = decode_request(decode_packet(packet))
        assert isinstance(opened, OpenConsumer)
        assert list(opened.held) == held.declared()[0]


def test_scattered_entries_are_removed_by_bits() -> None:
    held = UnackedRows()
    held.add(LEDGER, 10, 5, span(0, 5), 5)
    held.add(LEDGER, 15, 1, span(0, 100), 100)
    held.add(LEDGER, 16, 1, span(0, 1), 1)
    held.add(LEDGER, 17, 4, span(1, 4), 4)
    held.remove_bits((LEDGER, 11, 0b1010_0101.to_bytes(2, "little")))
    assert held.declared()[0] == [
        (LEDGER, 10, ((0, 1), (2, 3), (4, 5))),
        (LEDGER, 15, ((0, 100),)),
        (LEDGER, 17, ((2, 4),)),
    ]
    held.remove_bits((LEDGER, 14, b"\xff"))
    assert held.declared()[0] == [(LEDGER, 10, ((0, 1), (2, 3)))]


def forget(model: Model, is_gone: Callable[[int, int, int], bool]) -> None:
    """Without the rows for which `is_gone(ledger id, entry id, row)`."""
    for key, held in list(model.items()):
        model[key] = {one for one in held if not is_gone(key[0], *one)}
        if not model[key]:
            del model[key]


def ranges_in(rows: list[int]) -> RowRanges:
    ends = [row for row in rows if row + 1 not in rows]
    return tuple(
        (row, end + 1) for row, end in zip([row for row in rows if row - 1 not in rows], ends, strict=True)
    )


@pytest.mark.parametrize("ordered", [0.5, 0.95, 1.0])
def test_what_is_removed_in_whatever_way_is_not_held(ordered: float) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    held, model = UnackedRows(), dict[tuple[int, int], set[tuple[int, int]]]()
    blocks: list[tuple[int, int, int]] = []
    entry_id = 0
    for _ in range(300):
        size = chance.choice([0, 0, 0, 1, 5, 20])
        blocks.append((chance.choice([0, 0, 1]) + len(blocks) // 100, entry_id, size))
        entry_id += max(size, 1) + chance.choice([0, 0, 3])
    blocks.sort(key=lambda block: (block[0] if chance.random() < ordered else chance.randrange(4), block[1]))
    while blocks or model:
        for ledger_id, first, size in blocks[:3]:
            entries = size if size > 1 else 1
            rows = span(0, entries)
            held.add(ledger_id, first, entries, rows, entries)
            model[ledger_id, first] = {(first + row, row) for row in range(entries)}
        del blocks[:3]
        _remove_somewhere(chance, held, model, entry_id)
        expected = [(*key, ranges_in(sorted(row for _, row in model[key]))) for key in sorted(model)]
        assert held.declared()[0] == expected
        assert len(held) == len(model)


def _remove_somewhere(chance: random.Random, held: UnackedRows, model: Model, end: int) -> None:
    ledger, first = min(model, default=(0, 0)) if chance.random() < 0.7 else (0, chance.randrange(end))
    last = first + chance.choice([0, 1, 10, 40])
    way = chance.randrange(4)
    if way == 0:
        held.remove_entries([(ledger, first, last)])
        forget(model, lambda lid, entry, _: lid == ledger and first <= entry <= last)
    elif way == 1:
        gone = [entry for entry in range(first, last + 1) if chance.random() < 0.5]
        held.remove_entries([(ledger, entry, entry) for entry in gone])
        forget(model, lambda lid, entry, _: lid == ledger and entry in gone)
    elif way == 2:
        bits = chance.getrandbits(30)
        held.remove_bits((ledger, first, bits.to_bytes(4, "little")))
        forget(
            model, lambda lid, entry, _: lid == ledger and entry >= first and bits >> (entry - first) & 1 == 1
        )
    elif chance.random() < 0.1:
        held.remove_up_to(ledger, first)
        forget(model, lambda lid, entry, _: (lid, entry) <= (ledger, first))


def test_the_count_of_an_entry_is_that_of_its_last_delivery() -> None:
    unacked = UnackedRows()
    unacked.add(1, 10, 5, 0b11111, 5)
    unacked.add(1, 20, 1, 0b111, 3)
    assert [unacked.count_of(1, entry) for entry in (9, 10, 14, 15, 20)] == [-1, 0, 0, -1, 0]
    unacked.add(1, 10, 5, 0b00100, 5)
    unacked.note_count(1, 10, 0b00100, 1)
    unacked.note_count(1, 10, 0b00100, 2)
    unacked.note_count(1, 20, 0b111, 4)
    assert [unacked.count_of(1, entry) for entry in (11, 12, 20)] == [0, 2, 4]
    unacked.remove_entries([(1, 20, 20)])
    unacked.add(1, 20, 1, 0b111, 3)
    assert unacked.count_of(1, 20) == 0


def test_rows_that_were_delivered_since_they_failed_are_known() -> None:
    held = UnackedRows()
    held.add(LEDGER, 10, 5, span(0, 5), 5)
    held.add(LEDGER, 20, 1, span(0, 8), 8)
    failed = ((0, 2), (3, 4))
    assert held.delivered_since(LEDGER, 10, failed, 0) == 0
    held.note_count(LEDGER, 10, span(1, 5), 1)
    assert held.delivered_since(LEDGER, 10, failed, 0) == of_ranges(((1, 2), (3, 4)))
    assert held.delivered_since(LEDGER, 10, failed, 1) == 0
    held.note_count(LEDGER, 10, span(3, 4), 2)
    assert held.delivered_since(LEDGER, 10, failed, 1) == span(3, 4)
    assert held.delivered_since(LEDGER, 10, failed, -1) == 0, "of which delivery is not known"
    assert held.delivered_since(LEDGER, 99, (), 0) == 0


def test_a_part_of_a_batch_has_not_come_again_because_another_part_came() -> None:
    held = UnackedRows()
    held.add(LEDGER, 20, 1, span(0, 8), 8)
    held.note_count(LEDGER, 20, span(0, 8), 3)
    assert held.delivered_since(LEDGER, 20, ((1, 2),), 2) == span(1, 2)
    assert held.delivered_since(LEDGER, 20, (), 2) is None
    assert held.delivered_since(LEDGER, 20, ((1, 2),), 3) == 0
    held.note_count(LEDGER, 20, span(4, 8), 5)
    assert held.delivered_since(LEDGER, 20, ((1, 2),), 3) == 0
    assert held.delivered_since(LEDGER, 20, ((1, 2), (5, 6)), 3) == span(5, 6)
    assert held.delivered_since(LEDGER, 20, (), 3) == 0, "the first part has not come again"
    assert [held.count_of(LEDGER, 20, row) for row in (1, 5, 9)] == [3, 5, -1]
    held.remove_failed(LEDGER, 20, ((1, 2),), 3)
    assert held.rows_of(LEDGER, 20) == span(4, 8), "the part that came later is held"
    held.remove_failed(LEDGER, 20, ((5, 6),), 5)
    assert held.rows_of(LEDGER, 20) == 0


def test_rows_that_come_again_uncounted_have_no_count() -> None:
    """As after a dispatcher that died before its counts were durable."""
    held = UnackedRows()
    held.add(LEDGER, 10, 5, span(0, 5), 5)
    held.note_count(LEDGER, 10, span(0, 4), 1)
    held.remove_failed(LEDGER, 10, ((1, 3),), 1)
    held.add(LEDGER, 10, 5, span(2, 3), 5)
    assert [held.count_of(LEDGER, entry) for entry in (10, 12, 13)] == [1, 0, 1]
    assert held.delivered_since(LEDGER, 10, ((2, 3),), 0) == 0


def test_parts_of_batches_are_declared_apart_until_they_are_gone() -> None:
    held = UnackedRows()
    held.add(LEDGER, 1, 1, 0b11, 4)
    held.note_part(LEDGER, 1)
    held.add(LEDGER, 2, 1, 0b1111, 4)
    assert held.declared() == ([(LEDGER, 2, ((0, 4),))], [(LEDGER, 1, ((0, 2),))])
    held.remove_entries([(LEDGER, 1, 1)])
    held.add(LEDGER, 1, 1, 0b1111, 4)
    assert held.declared() == ([(LEDGER, 1, ((0, 4),)), (LEDGER, 2, ((0, 4),))], [])
