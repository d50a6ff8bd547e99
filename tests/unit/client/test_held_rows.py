from __future__ import annotations

from pulsar_ray.client.held_rows import Declared, HeldRows
from pulsar_ray.model.row_sets import of_ranges, span
from pulsar_ray.session.packet import MAX_FIELDS_BYTES, decode_packet
from pulsar_ray.session.requests import OpenConsumer, decode_request, encode_request

LEDGER = 2**40


def opening(held: list[Declared]) -> OpenConsumer:
    return OpenConsumer(1, 2, "c", 2**60, 0, 0, False, True, 3, 4, held, None, "s", 5)


def test_what_is_held_is_declared_in_order() -> None:
    held = HeldRows()
    held.add(LEDGER, 10, 5, span(0, 5), 5)
    held.add(LEDGER, 3, 1, span(0, 1), 1)
    held.add(LEDGER, 20, 1, span(0, 100), 100)
    held.remove_entries([(LEDGER, 11, 12)])
    held.remove_rows(LEDGER, 20, span(50, 60))
    assert held.declared() == [
        (LEDGER, 3, ((0, 1),)),
        (LEDGER, 10, ((0, 1), (3, 5))),
        (LEDGER, 20, ((0, 50), (60, 100))),
    ]


def test_a_declaration_fits_into_a_packet_whatever_is_held() -> None:
    singles = HeldRows()
    for entry_id in range(0, 200_000, 2):
        singles.add(LEDGER, entry_id, 1, span(0, 1), 1)
    fragments = HeldRows()
    rows = of_ranges(tuple((row, row + 1) for row in range(7000, 8192, 2)))
    for entry_id in range(1000):
        fragments.add(LEDGER, 10_000 + entry_id, 1, rows, 8192)
    for held in (singles, fragments):
        packet = b"".join(encode_request(opening(held.declared())))
        assert len(packet) < MAX_FIELDS_BYTES
        opened = decode_request(decode_packet(packet))
        assert isinstance(opened, OpenConsumer)
        assert list(opened.held) == held.declared()


def test_scattered_entries_are_removed_by_bits() -> None:
    held = HeldRows()
    held.add(LEDGER, 10, 5, span(0, 5), 5)
    held.add(LEDGER, 15, 1, span(0, 100), 100)
    held.add(LEDGER, 16, 1, span(0, 1), 1)
    held.add(LEDGER, 17, 4, span(1, 4), 4)
    held.remove_bits((LEDGER, 11, 0b1010_0101.to_bytes(2, "little")))
    assert held.declared() == [
        (LEDGER, 10, ((0, 1), (2, 3), (4, 5))),
        (LEDGER, 15, ((0, 100),)),
        (LEDGER, 17, ((2, 4),)),
    ]
    held.remove_bits((LEDGER, 14, b"\xff"))
    assert held.declared() == [(LEDGER, 10, ((0, 1), (2, 3)))]
