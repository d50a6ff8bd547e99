"""Columns that others have written: ours finds all that Arrow would, texts of ASCII in one go."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from pulsar_ray.format.validation import validate_batch

ROWS = 3000
KINDS = {pa.utf8(): np.int32, pa.large_utf8(): np.int64}
of_each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def texts(
    kind: pa.DataType, data: bytes, offsets: list[int], validity: bytes | None = None
) -> pa.RecordBatch:
    buffers = [
        None if validity is None else pa.py_buffer(validity),
        pa.py_buffer(np.array(offsets, KINDS[kind])),
        pa.py_buffer(data),
    ]
    return pa.record_batch([pa.Array.from_buffers(kind, len(offsets) - 1, buffers)], names=["text"])


def offsets() -> list[int]:
    return list(range(0, 10 * ROWS + 1, 10))


@of_each_kind
def test_texts_that_are_right_pass(kind: pa.DataType) -> None:
    validate_batch(texts(kind, b"a" * 10 * ROWS, offsets()))
    validate_batch(texts(kind, b"a" * 10 * ROWS, offsets(), bytes(ROWS // 8)))
    validate_batch(texts(kind, "grün, 23\u00b0".encode() * ROWS, list(range(0, 11 * ROWS + 1, 11))))
    validate_batch(texts(kind, b"a" * 10 * ROWS, offsets()).slice(7, 100))
    validate_batch(texts(kind, b"", [0]))
    validate_batch(pa.record_batch([pa.array([None] * ROWS, kind)], names=["text"]))


@of_each_kind
def test_one_byte_that_is_no_text_is_found_wherever_it_stands(kind: pa.DataType) -> None:
    for place in (0, 500, 10 * ROWS // 2, 10 * ROWS - 1):
        data = bytearray(b"a" * 10 * ROWS)
        data[place] = 0xFF
        with pytest.raises(pa.ArrowInvalid, match="UTF8"):
            validate_batch(texts(kind, bytes(data), offsets()))


@pytest.mark.parametrize("place", [0, 1 << 17, 177_777, 399_999])
def test_one_byte_that_is_no_text_is_found_in_long_columns(place: int) -> None:
    data = bytearray(b"a" * 400_000)
    validate_batch(texts(pa.utf8(), bytes(data), [0, 200_000, 400_000]))
    data[place] = 0xFF
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        validate_batch(texts(pa.utf8(), bytes(data), [0, 200_000, 400_000]))


@of_each_kind
@pytest.mark.parametrize("wrong", [-1, -(1 << 31), 10 * ROWS + 1, (1 << 31) - 1])
@pytest.mark.parametrize("place", [0, 1, ROWS // 2, ROWS])
def test_an_offset_that_is_wrong_is_found_in_plain_texts(kind: pa.DataType, wrong: int, place: int) -> None:
    changed = offsets()
    changed[place] = wrong
    with pytest.raises(pa.ArrowInvalid):
        validate_batch(texts(kind, b"a" * 10 * ROWS, changed))


def test_a_character_that_two_rows_share_is_no_text_of_either() -> None:
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        validate_batch(texts(pa.utf8(), b"\xc3\xbc" * 5 * ROWS, list(range(0, 10 * ROWS + 1, 5))))


def test_it_refuses_what_arrow_refuses() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(300):
        data = bytearray(b"a" * 10 * ROWS)
        changed = offsets()
        if chance.random() < 0.5:
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.5:
            # Arrow makes no array whose first offset is negative, or whose last is behind the data.
            changed[chance.randrange(1, len(changed) - 1)] += chance.choice([-20, -1, 1, 20])
        batch = texts(pa.utf8(), bytes(data), changed)
        try:
            batch.validate(full=True)
        except pa.ArrowException:
            with pytest.raises(pa.ArrowException):
                validate_batch(batch)
        else:
            validate_batch(batch)


def test_other_columns_are_looked_at_as_before() -> None:
    wrong = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(np.array([0, 9, 1], np.int32)), pa.py_buffer(b"a")]
    )
    fine = texts(pa.utf8(), b"a" * 10 * ROWS, offsets()).slice(0, 2).column(0)
    with pytest.raises(pa.ArrowInvalid):
        validate_batch(pa.record_batch([fine, wrong], names=["text", "data"]))
    inside = pa.ListArray.from_arrays([0, 1], texts(pa.utf8(), b"\xff" * 20_000, [0, 20_000]).column(0))
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        validate_batch(pa.record_batch([inside], names=["texts"]))
