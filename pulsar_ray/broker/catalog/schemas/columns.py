"""Whether rows of one schema of Arrow can be read with another (ADR 0129)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from pulsar_ray.broker.catalog.schemas.resolution import Misfit
from pulsar_ray.format.arrow_types import joined, schema_of

_MOST_MISFITS: Final = 20
_UNITS: Final = ("s", "ms", "us", "ns")
_TEXTS: Final = ("string", "large_string", "binary", "large_binary")
_MANTISSA_BITS: Final = {16: 11, 32: 24, 64: 53}


def column_misfits(reader: str, writer: str) -> list[Misfit]:
    """Return where rows of the writer's schema do not fit the reader's.

    Raises ValueError for a text that is none.
    """
    found = _of_fields(schema_of(reader), schema_of(writer), "")
    return [misfit for misfit, _ in zip(found, range(_MOST_MISFITS), strict=False)]


def _of_fields(reader: Iterable[pa.Field], writer: Iterable[pa.Field], path: str) -> Iterator[Misfit]:
    written = {field.name: field for field in writer}
    for field in reader:
        place = joined(path, field.name)
        if field.name in written:
            yield from _of_field(field, written[field.name], place)
        elif not field.nullable:
            yield Misfit(
                place,
                "what was written has no such column, and it has no nulls",
                f"let the column {field.name!r} have nulls",
            )


def _of_field(reader: pa.Field, writer: pa.Field, place: str) -> Iterator[Misfit]:
    if writer.nullable and not reader.nullable:
        yield Misfit(place, "what was written may be null, and the column has no nulls", "let it have nulls")
    yield from _of_types(reader.type, writer.type, place)


def _of_types(reader: pa.DataType, writer: pa.DataType, place: str) -> Iterator[Misfit]:
    reader, writer = _values(reader), _values(writer)
    if pa.types.is_struct(reader) and pa.types.is_struct(writer):
        yield from _of_fields(reader, writer, place)
    elif pa.types.is_map(reader) and pa.types.is_map(writer):
        yield from _of_field(reader.key_field, writer.key_field, place + "{}")
        yield from _of_field(reader.item_field, writer.item_field, place + "{}")
    elif _is_list(reader) and _is_list(writer) and _size(reader) == _size(writer):
        yield from _of_field(reader.value_field, writer.value_field, place + "[]")
    elif not _reads(reader, writer):
        yield Misfit(place, f"{writer} cannot be read as {reader}", "give the column another name")


def _values(kind: pa.DataType) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _size(kind: Any) -> int:
    return kind.list_size if pa.types.is_fixed_size_list(kind) else -1


def _reads(reader: Any, writer: Any) -> bool:  # noqa: PLR0911 - one for each kind of type
    """Whether each value of a type is one of another, which may be wider."""
    types = pa.types
    if reader.equals(writer) or types.is_null(writer):
        return True
    if types.is_integer(writer):
        return _reads_integer(reader, writer)
    if types.is_floating(writer):
        return bool(types.is_floating(reader) and reader.bit_width >= writer.bit_width)
    if str(writer) in _TEXTS:
        # As in Avro: bytes may be read as text, which fails for those that are none.
        return str(reader) in _TEXTS
    if types.is_fixed_size_binary(writer):
        return str(reader) in ("binary", "large_binary")
    if types.is_decimal(writer):
        return bool(
            types.is_decimal(reader)
            and reader.scale >= writer.scale
            and reader.precision - reader.scale >= writer.precision - writer.scale
        )
    if types.is_timestamp(writer):
        same_zone = types.is_timestamp(reader) and reader.tz == writer.tz
        return bool(same_zone and _is_finer(reader, writer))
    same_kind = (types.is_time(writer) and types.is_time(reader)) or (
        types.is_duration(writer) and types.is_duration(reader)
    )
    return bool(same_kind and _is_finer(reader, writer)) or (writer == pa.date32() and reader == pa.date64())


def _reads_integer(reader: Any, writer: Any) -> bool:
    is_unsigned = bool(pa.types.is_unsigned_integer(writer))
    bits = writer.bit_width - (not is_unsigned)
    if pa.types.is_floating(reader):
        return bool(bits <= _MANTISSA_BITS[reader.bit_width])
    if not pa.types.is_integer(reader):
        return False
    if pa.types.is_unsigned_integer(reader):
        return is_unsigned and bool(reader.bit_width >= bits)
    return bool(reader.bit_width - 1 >= bits)


def _is_finer(reader: Any, writer: Any) -> bool:
    return bool(_UNITS.index(reader.unit) >= _UNITS.index(writer.unit))
