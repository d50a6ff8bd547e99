"""Which schemas of rows read which."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.broker.catalog.schemas.columns import column_misfits
from pulsar_ray.format.arrow_types import fitted, schema_text


def text(kind: Any, nullable: bool = True) -> str:
    return schema_text(pa.schema([pa.field("x", kind, nullable)]))


I8, I32, I64, U8, U32, U64 = pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()
F32, F64, TEXT, BYTES = pa.float32(), pa.float64(), pa.string(), pa.binary()
S, MS = pa.timestamp("s", "UTC"), pa.timestamp("ms", "UTC")


@pytest.mark.parametrize(
    ("writer", "reader", "back"),
    [
        (I8, I64, False),
        (U32, I64, False),
        (U8, U64, False),
        (I8, F32, False),
        (I32, F64, False),
        (F32, F64, False),
        (TEXT, BYTES, True),
        (TEXT, pa.large_string(), True),
        (pa.binary(4), BYTES, False),
        (TEXT, pa.dictionary(I8, TEXT), True),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), False),
        (pa.decimal128(5, 2), pa.decimal256(50, 2), False),
        (S, MS, False),
        (pa.time32("s"), pa.time64("us"), False),
        (pa.date32(), pa.date64(), False),
        (pa.null(), TEXT, False),
        (pa.list_(I8), pa.large_list(I64), False),
        (pa.map_(TEXT, I8), pa.map_(TEXT, I64), False),
        (pa.struct([("a", I8)]), pa.struct([("b", TEXT), ("a", I8)]), True),
    ],
    ids=str,
)
def test_wider_types_read_narrower_ones(writer: Any, reader: Any, back: bool) -> None:
    assert column_misfits(text(reader), text(writer)) == []
    assert (column_misfits(text(writer), text(reader)) == []) == back
    # The rule and the reading agree.
    fitted(pa.nulls(2, writer), pa.field("x", reader), "x")


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (I64, F64),
        (U64, I64),
        (I8, U8),
        (I64, TEXT),
        (TEXT, I64),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (S, pa.timestamp("s")),
        (S, pa.timestamp("s", "Europe/Berlin")),
        (pa.list_(I8, 2), pa.list_(I8, 3)),
        (pa.list_(I8), pa.map_(TEXT, I8)),
    ],
    ids=str,
)
def test_others_are_misfits_with_their_place(writer: Any, reader: Any) -> None:
    (misfit,) = column_misfits(text(pa.list_(reader)), text(pa.list_(writer)))
    assert misfit.path == "x[]"
    assert misfit.reason == f"{writer} cannot be read as {reader}"


def test_columns_come_and_go_if_they_have_nulls() -> None:
    one = schema_text(pa.schema([("a", I8)]))
    two = schema_text(pa.schema([("a", I8), ("b", TEXT)]))
    required = schema_text(pa.schema([("a", I8), pa.field("b", TEXT, nullable=False)]))
    assert column_misfits(one, two) == column_misfits(two, one) == []
    assert column_misfits(one, required) == []
    (misfit,) = column_misfits(required, one)
    assert (misfit.path, misfit.remedy) == ("b", "let the column 'b' have nulls")
    (misfit,) = column_misfits(required, two)
    assert "may be null" in misfit.reason


def test_no_more_than_some_misfits_are_named() -> None:
    many = [(f"c{number}", I8) for number in range(500)]
    found = column_misfits(
        schema_text(pa.schema([(name, TEXT) for name, _ in many])), schema_text(pa.schema(many))
    )
    assert len(found) == 20
