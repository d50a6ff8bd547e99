from __future__ import annotations

import gc

import pyarrow as pa

from pulsar_ray.client.arrow.received_table import ReceivedTables, received_table
from pulsar_ray.client.received.message import BlockRows
from tests.unit.client.blocks import received


def parts(first_entry_id: int = 0) -> list[BlockRows]:
    return [BlockRows(received([b"a", b"b", b"c"], first_entry_id=first_entry_id), range(3))]


def test_a_table_is_known_by_itself_only() -> None:
    tables = ReceivedTables()
    rows = parts()
    table = tables.add(received_table(rows), rows)
    assert tables.rows_of(table) is rows
    for other in (table.slice(0, 2), table.slice(0), table.select(["value"]), received_table(rows), None, 3):
        assert tables.rows_of(other) is None
    assert tables.rows_of(table.combine_chunks()) is None


def test_tables_are_forgotten_with_their_last_reference() -> None:
    tables = ReceivedTables()
    kept: list[pa.Table] = []
    for number in range(50):
        rows = parts(number)
        table = tables.add(received_table(rows), rows)
        if number % 10 == 0:
            kept.append(table)
    del table
    gc.collect()
    assert len(tables._known) == len(kept)
    for number, table in enumerate(kept):
        known = tables.rows_of(table)
        assert known is not None
        assert known[0].block.first_entry_id == 10 * number
