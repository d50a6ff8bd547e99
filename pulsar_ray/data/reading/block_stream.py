"""Arrow IPC streams of one batch, joined of the buffers that columns consist of.

Arrow copies columns to make one of several, and again to write them; here each byte is copied once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.format.arrow_message import BatchTemplate, padded
from pulsar_ray.format.checksum import Buffer

_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_PADDING = bytes(8)


class Column(NamedTuple):
    """A column as it stands in a stream."""

    nodes: list[tuple[int, int]]
    """Length and count of nulls of the array, and of its children behind it."""
    buffers: list[Sequence[Buffer]]
    """The parts of each buffer."""


def joined_stream(schema: pa.Schema, rows: int, columns: Sequence[Column]) -> bytes:
    """The stream of a batch of these columns; see `pyarrow.ipc.open_stream`."""
    form = _form(schema)
    nodes = [node for column in columns for node in column.nodes]
    buffers = [buffer for column in columns for buffer in column.buffers]
    lengths = [sum(memoryview(part).nbytes for part in buffer) for buffer in buffers]
    parts: list[Buffer] = [form.start, form.template.metadata(rows, nodes, lengths)]
    for buffer, length in zip(buffers, lengths, strict=True):
        parts += buffer
        if padding := padded(length) - length:
            parts.append(_PADDING[:padding])
    parts.append(_STREAM_END)
    return b"".join(parts)


def batch_of_stream(stream: bytes) -> pa.RecordBatch:
    """The batch of a stream, without copying it."""
    return pa.ipc.open_stream(stream).read_next_batch()


class _Form(NamedTuple):
    start: bytes
    template: BatchTemplate


@lru_cache(maxsize=256)
def _form(schema: pa.Schema) -> _Form:
    sample = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    return _Form(schema.serialize().to_pybytes(), BatchTemplate(sample.serialize().to_pybytes()))


def of_numbers(numbers: npt.NDArray[np.generic]) -> Column:
    """A column of numbers, none null."""
    return Column([(len(numbers), 0)], [(), (numbers.data,)])


def of_fixed(array: pa.Array, kind: type[np.generic]) -> Column:
    """A column of items of a fixed width, which numpy has as `kind`."""
    items = np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]
    return Column([(len(array), array.null_count)], [_validity([array]), (items.data,)])


def of_strings(arrays: Sequence[pa.Array]) -> Column:
    """A column of strings or bytes in several arrays, together below 2 GiB."""
    counts = [len(array) for array in arrays]
    ends: list[npt.NDArray[np.int32]] = []
    data: list[Buffer] = []
    shifts, size = [], 0
    for array, count in zip(arrays, counts, strict=True):
        if not count:
            shifts.append(0)
            continue  # may have no offsets
        _, offsets, values = array.buffers()
        places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + count + 1]
        first, last = int(places[0]), int(places[-1])
        ends.append(places[1:])
        shifts.append(size - first)
        if last > first:
            data.append(memoryview(values)[first:last])
        size += last - first
    joined = np.zeros(sum(counts) + 1, np.int32)
    if ends:
        np.concatenate(ends, out=joined[1:])
        joined[1:] += np.repeat(np.array(shifts, np.int32), counts)
    nulls = sum(array.null_count for array in arrays)
    return Column([(sum(counts), nulls)], [_validity(arrays), (joined.data,), data])


def of_no_value(rows: int, kind: pa.DataType) -> Column:
    """A column of nulls alone: numbers, times, strings or bytes."""
    has_offsets = pa.types.is_string(kind) or pa.types.is_binary(kind)
    bits = _zeros((rows + 7) // 8)
    if has_offsets:
        return Column([(rows, rows)], [(bits,), (_zeros(4 * (rows + 1)),), ()])
    return Column([(rows, rows)], [(bits,), (_zeros(rows * kind.bit_width // 8),)])


def of_same_string(rows: int, value: bytes) -> Column:
    """A column with the same string in each row."""
    places = np.arange(rows + 1, dtype=np.int32) * np.int32(len(value))
    return Column([(rows, 0)], [(), (places.data,), (value * rows,)])


def of_maps(offsets: npt.NDArray[np.int32], keys: pa.Array, items: pa.Array) -> Column:
    """A column of maps, none null; `offsets` say where each begins in keys and items."""
    first, entries = int(offsets[0]), int(offsets[-1] - offsets[0])
    of_keys, of_items = (of_strings([child.slice(first, entries)]) for child in (keys, items))
    nodes = [(len(offsets) - 1, 0), (entries, 0), *of_keys.nodes, *of_items.nodes]
    places = offsets - offsets[0]
    return Column(nodes, [(), (places.data,), (), *of_keys.buffers, *of_items.buffers])


def of_empty_maps(rows: int) -> Column:
    """A column of maps without entries."""
    none: list[Sequence[Buffer]] = [(), (_zeros(4),), ()]
    return Column([(rows, 0), (0, 0), (0, 0), (0, 0)], [(), (_zeros(4 * (rows + 1)),), (), *none, *none])


def _validity(arrays: Sequence[pa.Array]) -> Sequence[Buffer]:
    if not any(array.null_count for array in arrays):
        return ()
    bits = np.concatenate([_bits(array) for array in arrays])
    return (np.packbits(bits, bitorder="little").data,)


def _bits(array: pa.Array) -> npt.NDArray[np.uint8]:
    validity = array.buffers()[0]
    if validity is None:
        return np.ones(len(array), np.uint8)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)]


def _zeros(length: int) -> memoryview:
    return memoryview(_many_zeros(1 << (length - 1).bit_length() if length else 1))[:length]


@lru_cache(maxsize=4)
def _many_zeros(length: int) -> bytes:
    return bytes(length)
