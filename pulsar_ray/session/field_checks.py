"""Checks of single fields, and the types that declare requests' fields with them.

A packet can carry any value in any field, and one that nobody expected would show as a defect deep inside the
actor, which ends its process. So every field of a request names its check beside its type, in
`session/requests.py`, and `session/requests.py` calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any

from pulsar_ray.model.enums import ConsumerType, ProducerAccessMode
from pulsar_ray.model.row_sets import EntryBits, EntryRange

Check = Callable[[Any], bool]
BatchRows = tuple[int, int, tuple[tuple[int, int], ...]]
"""(ledger id, entry id, half-open row ranges of the batch)."""

NUMBER_END = 2**63
"""Numbers are kept and reported in 64 bits with a sign."""
_ROW_END = 2**31
_ACCESS_MODES = frozenset(map(int, ProducerAccessMode))
_CONSUMER_TYPES = frozenset(map(int, ConsumerType))


def is_number(value: Any) -> bool:
    """A count, an id or a place; -1 where there is none."""
    return type(value) is int and -1 <= value < NUMBER_END


def is_incarnation(value: Any) -> bool:
    """A random number of 64 bits."""
    return type(value) is int and 0 <= value < 2 * NUMBER_END


def is_text(value: Any) -> bool:
    """A name, or any other text."""
    return type(value) is str


def is_flag(value: Any) -> bool:
    """True or False."""
    return type(value) is bool


def is_position(value: Any) -> bool:
    """[ledger id, entry id]."""
    return type(value) in (tuple, list) and len(value) == 2 and all(map(is_number, value))


def or_none(check: Check) -> Check:
    """A check that takes None, and the values that `check` takes."""
    return lambda value: value is None or check(value)


def are_rows_of(width: int, values: Any) -> bool:
    """A tuple of tuples of so many numbers.

    They are looked at as a whole, for there may be thousands.
    """
    if type(values) is not tuple:
        return False
    if len(values) <= 1:
        return all(type(row) is tuple and len(row) == width and all(map(is_number, row)) for row in values)
    if set(map(type, values)) != {tuple} or set(map(len, values)) != {width}:
        return False
    numbers = list(chain.from_iterable(values))
    return set(map(type, numbers)) == {int} and min(numbers) >= -1 and max(numbers) < NUMBER_END


def _is_access_mode(value: Any) -> bool:
    return type(value) is int and value in _ACCESS_MODES


def _is_type_of_consumer(value: Any) -> bool:
    return type(value) is int and value in _CONSUMER_TYPES


def _are_ranges(value: Any) -> bool:
    """Half-open ranges of rows."""
    return are_rows_of(2, value) and all(0 <= start <= end < _ROW_END for start, end in value)


def _are_batch_rows(value: Any) -> bool:
    return type(value) is tuple and all(map(_is_batch_rows, value))


def _is_batch_rows(value: Any) -> bool:
    return type(value) is tuple and len(value) == 3 and is_position(value[:2]) and _are_ranges(value[2])


def _are_entry_ranges(value: Any) -> bool:
    return are_rows_of(3, value)


def _are_entry_bits(value: Any) -> bool:
    return type(value) is tuple and all(map(_is_entry_bits, value))


def _is_entry_bits(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3:
        return False
    ledger_id, origin, data = value
    return is_position((ledger_id, origin)) and origin >= 0 and type(data) is bytes


def _is_cumulative(value: Any) -> bool:
    return type(value) is tuple and len(value) == 3 and all(map(is_number, value)) and value[2] < _ROW_END


def _is_message(value: Any) -> bool:
    """(ledger id, first entry id, row)."""
    return _is_cumulative(value) and value[2] >= 0


def _are_failures(value: Any) -> bool:
    return type(value) is tuple and all(map(_is_failure, value))


def _is_failure(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 4:
        return False
    return is_position(value[:2]) and value[1] >= 0 and _are_ranges(value[2]) and is_number(value[3])


def _is_start(value: Any) -> bool:
    return (
        type(value) is dict
        and value.keys() == {"target", "inclusive"}
        and all((is_seek_target(value["target"]), is_flag(value["inclusive"])))
    )


def is_seek_target(value: Any) -> bool:
    """The target of a seek: an end by name, a publish time, or a position.

    The time is in ms.
    """
    if type(value) is str:
        return value in ("earliest", "latest")
    return is_number(value) or is_position(value)


def _is_key_shared(value: Any) -> bool:
    if type(value) is not tuple or len(value) != 3:
        return False
    mode, allow_out_of_order_delivery, ranges = value
    return type(mode) is int and is_flag(allow_out_of_order_delivery) and are_rows_of(2, ranges)


def _are_chunk_limits(value: Any) -> bool:
    """(incomplete messages, whether the oldest is acknowledged, ms)."""
    if type(value) is not tuple or len(value) != 3:
        return False
    max_pending, acks_oldest, expire_ms = value
    return is_flag(acks_oldest) and all(is_number(limit) and limit >= 0 for limit in (max_pending, expire_ms))


def is_entry_seq(value: Any) -> bool:
    """[incarnation, entry_seq]."""
    if type(value) not in (tuple, list) or len(value) != 2:
        return False
    return is_incarnation(value[0]) and is_incarnation(value[1])


def _is_counter(value: Any) -> bool:
    """(process id, descriptor, offset, bytes)."""
    return (
        type(value) is tuple
        and len(value) == 4
        and all(type(number) is int and 0 <= number < _ROW_END for number in value[:3])
        and type(value[3]) is bytes
    )


def _is_named(value: Any) -> bool:
    return type(value) is dict and all(map(is_text, value))


def are_properties(value: Any) -> bool:
    """Texts by name."""
    return _is_named(value) and all(map(is_text, value.values()))


# A field's type and its check. A bare `int`, `bool` or `str` is checked to be of just that type.
Number = Annotated[int, is_number]
Incarnation = Annotated[int, is_incarnation]
Text = Annotated[str, is_text]
Flag = Annotated[bool, is_flag]
NumberOrNone = Annotated[int | None, or_none(is_number)]
TextOrNone = Annotated[str | None, or_none(is_text)]
PropertiesOrNone = Annotated[Mapping[str, str] | None, or_none(are_properties)]
AccessModeNumber = Annotated[int, _is_access_mode]
ConsumerTypeNumber = Annotated[int, _is_type_of_consumer]
BatchRowsList = Annotated[Sequence[BatchRows], _are_batch_rows]
CursorStart = Annotated[dict[str, Any] | None, or_none(_is_start)]
KeySharedFields = Annotated[tuple[int, bool, Sequence[tuple[int, int]]] | None, or_none(_is_key_shared)]
ChunkLimitFields = Annotated[tuple[int, bool, int] | None, or_none(_are_chunk_limits)]
EntryRanges = Annotated[Sequence[EntryRange], _are_entry_ranges]
CumulativePlace = Annotated[tuple[int, int, int] | None, or_none(_is_cumulative)]
ScatteredEntries = Annotated[Sequence[EntryBits], _are_entry_bits]
FailedEntries = Annotated[Sequence[tuple[int, int, tuple[tuple[int, int], ...], int]], _are_failures]
MessagePlace = Annotated[tuple[int, int, int] | None, or_none(_is_message)]
CounterPlace = Annotated[tuple[int, int, int, bytes] | None, or_none(_is_counter)]
PositionOrNone = Annotated[tuple[int, int] | None, or_none(is_position)]
Arguments = Annotated[dict[str, Any], _is_named]
