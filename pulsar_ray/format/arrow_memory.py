"""Arrow arrays of numpy's memory, and numpy's of Arrow's.

Arrow's own ways (`pa.array`, `to_numpy`) load pandas to ask whether they were given something of its. A
process that compacts would have nothing larger to load.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def int64_array(numbers: npt.NDArray[np.int64], present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers as an array; those that are not `present` are null."""
    validity = None if present is None else _bitmap(present)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [validity, pa.py_buffer(numbers)])


def bool_array(flags: npt.NDArray[np.bool_]) -> pa.Array:
    """Return flags as an array."""
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, _bitmap(flags)])


def text_array(text: str | None) -> pa.Array:
    """Return an array of one text, or of null."""
    data = b"" if text is None else text.encode()
    validity = None if text is not None else _bitmap(np.zeros(1, np.bool_))
    offsets = np.array([0, len(data)], np.int32)
    return pa.Array.from_buffers(pa.utf8(), 1, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def int32s_of(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the numbers of an array of int32 without nulls."""
    if not len(array):
        return np.empty(0, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, array.offset + len(array))[array.offset :]


def offsets_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of a column of texts or bytes, of at least one row."""
    return np.frombuffer(column.buffers()[1], np.int32, column.offset + len(column) + 1)[column.offset :]


def bools_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return the flags of an array of bool without nulls."""
    if not len(array):
        return np.empty(0, np.bool_)
    end = array.offset + len(array)
    bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), count=end, bitorder="little")
    return bits[array.offset :].view(np.bool_)


def _bitmap(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
