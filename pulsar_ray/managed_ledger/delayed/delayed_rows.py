"""Rows of blocks with the times they are due, in memory and on disk.

    offset  type  field
    0       i64   deliver_at in ms since 1970
    8       i64   ledger id
    16      i64   first entry id of the block
    24      u32   segment index
    28      u32   offset of the block in its segment
    32      u32   length of the block
    36      u16   messages of the block; bit 15: they share one entry
    38      u16   row, 65535 for all rows

Little-endian. Rows are ordered by their key: deliver_at, ledger id, first entry id, row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALL_ROWS = 0xFFFF
SHARES_ENTRY = 0x8000
ROW_BYTES = 40
_ROW = struct.Struct("<qqqIIIHH")
_FIELDS = (
    ("deliver_at", "<i8"),
    ("ledger_id", "<i8"),
    ("first_entry_id", "<i8"),
    ("segment_index", "<u4"),
    ("offset", "<u4"),
    ("length", "<u4"),
    ("messages", "<u2"),
    ("row", "<u2"),
)
_KEY_FIELDS = ("deliver_at", "ledger_id", "first_entry_id", "row")


class RowKey(NamedTuple):
    """The place of a row in the order of delivery."""

    deliver_at: int
    ledger_id: int = 1 << 62
    first_entry_id: int = 1 << 62
    row: int = ALL_ROWS


NO_KEY = RowKey(-(1 << 62), -1, -1, 0)
"""Below every row."""


class DelayedRow(NamedTuple):
    """One record: a row of a block, or all of its rows."""

    deliver_at: int
    ledger_id: int
    first_entry_id: int
    segment_index: int
    offset: int
    length: int
    messages: int
    row: int

    @property
    def key(self) -> RowKey:
        return RowKey(self.deliver_at, self.ledger_id, self.first_entry_id, self.row)


def row_type() -> Any:
    """The type of numpy's arrays of rows."""
    return np.dtype(list(_FIELDS))


def empty_rows(count: int = 0) -> NDArray[Any]:
    """Return an array for so many rows."""
    return np.zeros(count, row_type())


def rows_of_bytes(data: bytes | memoryview) -> NDArray[Any]:
    """Read an array of rows; it is not to be changed."""
    return np.frombuffer(data, row_type())


def read_rows(data: bytes) -> Iterator[DelayedRow]:
    """Yield the rows of stored bytes, without numpy."""
    return map(DelayedRow._make, _ROW.iter_unpack(data))


def sorted_rows(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Join arrays of rows in the order of their keys."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    order = np.lexsort((rows["row"], rows["first_entry_id"], rows["ledger_id"], rows["deliver_at"]))
    ordered: NDArray[Any] = rows[order]
    return ordered


def count_up_to(rows: NDArray[Any], key: RowKey) -> int:
    """Count the rows at or below a key, in an array that is in order."""
    low, high = 0, len(rows)
    for name, value in zip(_KEY_FIELDS, key, strict=True):
        column = rows[name][low:high]
        if column.dtype.kind == "u":
            column = column.astype(np.int64)
        low, high = (
            low + int(np.searchsorted(column, value, "left")),
            low + int(np.searchsorted(column, value, "right")),
        )
        if low == high:
            return low
    return high


def key_at(rows: NDArray[Any], index: int) -> RowKey:
    """The key of one row of an array."""
    row = rows[index]
    return RowKey(*(int(row[name]) for name in _KEY_FIELDS))


def entries_in(rows: NDArray[Any]) -> int:
    """Count the entries of an array's rows."""
    several = (rows["row"] == ALL_ROWS) & (rows["messages"] < SHARES_ENTRY)
    return len(rows) + int((rows["messages"][several].astype(np.int64) - 1).sum())


def messages_of(rows: NDArray[Any]) -> NDArray[Any]:
    """How many messages each of an array's records stands for."""
    messages = rows["messages"].astype(np.int64) & (SHARES_ENTRY - 1)
    return np.where(rows["row"] == ALL_ROWS, messages, 1)
