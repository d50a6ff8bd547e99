"""Values of Python as those of Arrow's types, and back."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from pulsar_ray.clock import written_time
from pulsar_ray.format.arrow_types import joined

Take = Callable[[Any, str], Any]
"""take(value, place) checks a value and returns it as Arrow takes it.

Raises TypeError and ValueError.
"""
Give = Callable[[Any], Any]
_FLOAT_LIMITS = {16: 65504.0, 32: 3.4028234663852886e38, 64: math.inf}


def take_field(field: pa.Field, *, is_json: bool = False) -> Take:
    """Return what takes values of a field.

    `is_json`: they come out of JSON, where times and bytes are texts.
    """
    take = _take_type(field.type, is_json=is_json)
    kind, nullable = field.type, field.nullable

    def take_or_null(value: Any, place: str) -> Any:
        if value is not None:
            return take(value, place)
        if not nullable:
            raise TypeError(f"Column {place!r} of type {kind} has no nulls, and None was given")
        return None

    return take_or_null


def take_fields(fields: Any, *, is_json: bool = False) -> Take:
    """Return what takes dicts with these fields as keys."""
    takes = {field.name: take_field(field, is_json=is_json) for field in fields}
    nothing = object()

    def take(value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            what = f"Column {place!r} takes" if place else "A row is"
            raise TypeError(f"{what} a dict with {', '.join(takes)}, not {type(value).__name__}")
        taken = {name: each(value.get(name), joined(place, name)) for name, each in takes.items()}
        unknown = next((name for name in value if name not in takes), nothing)
        if unknown is not nothing:
            raise ValueError(
                f"There is no column {joined(place, str(unknown))!r:.100}: there are {', '.join(takes)}"
            )
        return taken

    return take


def _take_type(kind: pa.DataType, *, is_json: bool) -> Take:  # noqa: PLR0911 - one for each kind of type
    if pa.types.is_dictionary(kind):
        return _take_type(kind.value_type, is_json=is_json)
    if pa.types.is_struct(kind):
        return take_fields(kind, is_json=is_json)
    if pa.types.is_map(kind):
        return _take_map(kind, is_json=is_json)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _take_list(kind, is_json=is_json)
    if pa.types.is_integer(kind):
        return _take_int(kind)
    if pa.types.is_floating(kind):
        return _take_float(kind)
    for is_kind, make in _SCALARS:
        if is_kind(kind):
            return make(kind, is_json)
    return lambda value, place: _refuse(value, place, kind, "None")


def _refuse(value: Any, place: str, kind: pa.DataType, wanted: str) -> NoReturn:
    raise TypeError(
        f"Invalid type {type(value).__name__} for column {place!r} of type {kind}: expected {wanted}"
    )


def _take_map(kind: pa.MapType, *, is_json: bool) -> Take:
    key, item = (take_field(field, is_json=is_json) for field in (kind.key_field, kind.item_field))

    def take(value: Any, place: str) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            _refuse(value, place, kind, "a dict")
        return [
            (key(name, f"{place} key"), item(each, f"{place}[{name!r:.40}]")) for name, each in value.items()
        ]

    return take


def _take_list(kind: pa.DataType, *, is_json: bool) -> Take:
    item = take_field(kind.value_field, is_json=is_json)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None

    def take(value: Any, place: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            _refuse(value, place, kind, "a list")
        if size is not None and len(value) != size:
            raise ValueError(f"Column {place!r} takes {size} items, not {len(value)}")
        return [item(each, f"{place}[{index}]") for index, each in enumerate(value)]

    return take


def _take_int(kind: pa.DataType) -> Take:
    bits = kind.bit_width
    low, high = (
        (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )

    def take(value: Any, place: str) -> Any:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            _refuse(value, place, kind, "int")
        if not low <= value <= high:
            raise ValueError(f"{value} is out of the range of column {place!r} of type {kind}")
        return value

    return take


def _take_float(kind: pa.DataType) -> Take:
    limit, is_half = _FLOAT_LIMITS[kind.bit_width], kind.bit_width == 16

    def take(value: Any, place: str) -> Any:
        if not isinstance(value, (float, int, np.floating, np.integer)) or isinstance(value, bool):
            _refuse(value, place, kind, "float")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if abs(number) > limit and not (isinstance(value, (float, np.floating)) and math.isinf(value)):
            raise ValueError(f"{value!r:.40} is out of the range of column {place!r} of type {kind}")
        return np.float16(number) if is_half else number

    return take


def _take_bool(kind: pa.DataType, _: bool) -> Take:
    return lambda value, place: (
        value if isinstance(value, (bool, np.bool_)) else _refuse(value, place, kind, "bool")
    )


def _take_text(kind: pa.DataType, _: bool) -> Take:
    def take(value: Any, place: str) -> str:
        if not isinstance(value, str):
            _refuse(value, place, kind, "str")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"The text for column {place!r} is no UTF-8: {error.reason}") from None
        return value

    return take


def _take_bytes(kind: pa.DataType, is_json: bool) -> Take:
    size = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None

    def take(value: Any, place: str) -> bytes:
        if is_json and isinstance(value, str):
            value = value.encode("utf-8", "surrogateescape")
        if not isinstance(value, (bytes, bytearray, memoryview)):
            _refuse(value, place, kind, "bytes")
        data = bytes(value)
        if size is not None and len(data) != size:
            raise ValueError(f"Column {place!r} takes {size} bytes, not {len(data)}")
        return data

    return take


def _take_decimal(kind: pa.Decimal128Type, is_json: bool) -> Take:
    whole = kind.precision - kind.scale

    def take(value: Any, place: str) -> Decimal:
        if is_json and isinstance(value, (str, float)):
            try:
                value = Decimal(str(value))
            except InvalidOperation:
                _refuse(value, place, kind, "a number")
        if not isinstance(value, (Decimal, int)) or isinstance(value, bool):
            _refuse(value, place, kind, "Decimal")
        number = Decimal(value)
        digits = number.as_tuple()
        exponent = digits.exponent
        fits = isinstance(exponent, int) and (
            not number or (number.adjusted() < whole and -exponent <= kind.scale)
        )
        if not fits:
            raise ValueError(f"{number!s:.60} does not fit column {place!r} of type {kind}")
        return number

    return take


def _take_timestamp(kind: pa.TimestampType, is_json: bool) -> Take:
    is_zoned = kind.tz is not None

    def take(value: Any, place: str) -> datetime.datetime:
        if is_json and isinstance(value, str):
            value = _of_iso(datetime.datetime, value, place, kind)
        if not isinstance(value, datetime.datetime):
            _refuse(value, place, kind, "datetime")
        if (value.utcoffset() is not None) != is_zoned:
            has = (
                "has no time zone, and the column has"
                if is_zoned
                else "has a time zone, and the column has none"
            )
            raise ValueError(f"The time {value.isoformat()} for column {place!r} of type {kind} {has}")
        return value

    return take


def _of_iso(what: Any, value: str, place: str, kind: pa.DataType) -> Any:
    try:
        return written_time(value, what)
    except ValueError:
        raise ValueError(
            f"{value!r:.60} is no time for column {place!r} of type {kind}: give ISO 8601"
        ) from None


def _take_simple(what: Any, *, of_seconds: bool = False) -> Callable[[pa.DataType, bool], Take]:
    def make(kind: pa.DataType, is_json: bool) -> Take:
        def take(value: Any, place: str) -> Any:
            if is_json and of_seconds and isinstance(value, (int, float)) and not isinstance(value, bool):
                value = datetime.timedelta(seconds=value)
            elif is_json and isinstance(value, str) and not of_seconds:
                value = _of_iso(what, value, place, kind)
            if not isinstance(value, what) or (
                what is datetime.date and isinstance(value, datetime.datetime)
            ):
                _refuse(value, place, kind, what.__name__)
            return value

        return take

    return make


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, bool], Take]], ...] = (
    (pa.types.is_boolean, _take_bool),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _take_text),
    (
        lambda kind: (
            pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
        ),
        _take_bytes,
    ),
    (pa.types.is_decimal, _take_decimal),
    (pa.types.is_timestamp, _take_timestamp),
    (pa.types.is_date, _take_simple(datetime.date)),
    (pa.types.is_time, _take_simple(datetime.time)),
    (pa.types.is_duration, _take_simple(datetime.timedelta, of_seconds=True)),
)
# Decimals of 128 bits are of a fixed size too.
_SCALARS = tuple(sorted(_SCALARS, key=lambda each: each[0] is not pa.types.is_decimal))


def python_values(column: pa.Array) -> list[Any]:
    """Return a column's values.

    Structs and maps are dicts, and times are cut to microseconds.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        # Through numpy objects: before pyarrow 25, to_pylist takes 20 times as long.
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    if not column.null_count and (pa.types.is_integer(kind) or kind in (pa.float32(), pa.float64())):
        numbers: list[Any] = column.to_numpy().tolist()
        return numbers
    coarse = _in_microseconds(kind)
    values = (column if coarse.equals(kind) else _cut(column, coarse)).to_pylist()
    give = _give(kind)
    return values if give is None else [None if value is None else give(value) for value in values]


def _cut(column: pa.Array, coarse: pa.DataType) -> pa.Array:
    if pa.types.is_nested(coarse) or pa.types.is_dictionary(coarse):
        return column  # as they are: those of Python hold what they can
    return column.cast(coarse, safe=False)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kind == pa.time64("ns"):
        return pa.time64("us")
    return pa.duration("us") if kind == pa.duration("ns") else kind


def _give(kind: pa.DataType) -> Give | None:
    """Return what makes dicts of the maps in a value; None if there are none."""
    if pa.types.is_map(kind):
        give = _give(kind.item_type)
        return dict if give is None else _give_map(give)
    if pa.types.is_struct(kind):
        parts = {field.name: give for field in kind if (give := _give(field.type)) is not None}
        return _give_struct(parts) if parts else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        give = _give(kind.value_type)
        return None if give is None else _give_list(give)
    return None


def _give_map(give: Give) -> Give:
    return lambda pairs: {key: None if each is None else give(each) for key, each in pairs}


def _give_struct(parts: dict[str, Give]) -> Give:
    return lambda value: {
        name: parts[name](each) if each is not None and name in parts else each
        for name, each in value.items()
    }


def _give_list(give: Give) -> Give:
    return lambda values: [None if each is None else give(each) for each in values]
