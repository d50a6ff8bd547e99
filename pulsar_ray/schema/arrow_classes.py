"""Dataclasses and pydantic models as columns of Arrow."""

from __future__ import annotations

import datetime
import types
import typing
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from pulsar_ray.client.options.checks import is_class, is_class_of_values
from pulsar_ray.schema.class_fields import declared_fields, has_default, hints_of

_SIMPLE: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
    datetime.date: pa.date32(),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
}
_Change = Callable[[Any], Any] | None


class _Column(NamedTuple):
    """A field of a class.

    `write` and `read` change its values where they are no plain ones.
    """

    field: pa.Field
    keyword: str
    has_default: bool
    nulls_are_default: bool
    write: _Change
    read: _Change


class ArrowClass:
    """Turns objects of a class into dicts, and back.

    A field with a default is a column with nulls: where an old row has none, the default is read. Where the
    field itself may be None, nulls are that, and the default is for rows that lack the column.
    """

    def __init__(self, kind: Any) -> None:
        """Raises TypeError for what has no columns, with the name of the field."""
        if not is_class_of_values(kind):
            raise TypeError(
                f"ArrowSchema needs a pa.Schema, a dataclass or a pydantic model, not {kind!r:.100}"
            )
        self._kind = kind
        self._columns = _columns(kind, ())
        self.schema = pa.schema([column.field for column in self._columns])

    def write(self, obj: Any) -> dict[str, Any]:
        """Return an object's fields. Raises TypeError for None in a field that has another default."""
        return _written(self._columns, obj)

    def read(self, row: dict[str, Any], lacking: Collection[str] = ()) -> Any:
        """Return an object of a row whose writer had no such columns as are `lacking`."""
        return _read(self._kind, self._columns, row, lacking)


def _written(columns: list[_Column], obj: Any) -> dict[str, Any]:
    values = {}
    for column in columns:
        value = getattr(obj, column.field.name)
        if value is None and column.nulls_are_default:
            raise TypeError(f"Field {column.field.name!r} of {type(obj).__name__} is None, and may not be")
        values[column.field.name] = value if value is None or column.write is None else column.write(value)
    return values


def _read(kind: Any, columns: list[_Column], row: dict[str, Any], lacking: Collection[str] = ()) -> Any:
    given = {}
    for column in columns:
        value = row[column.field.name]
        if value is None and (
            column.nulls_are_default or (column.has_default and column.field.name in lacking)
        ):
            continue
        given[column.keyword] = value if value is None or column.read is None else column.read(value)
    return kind(**given)


def _columns(kind: Any, outer: tuple[Any, ...]) -> list[_Column]:
    if kind in outer:
        raise TypeError(f"{kind.__name__} contains itself, and columns cannot: use JsonSchema or AvroSchema")
    fields = declared_fields(kind)
    hints = hints_of(kind, [name for name, _, _ in fields])
    columns = []
    for name, keyword, default in fields:
        where = f"{kind.__name__}.{name}"
        data_type, is_optional, write, read = _of_hint(hints[name], where, (*outer, kind))
        is_left_out = has_default(default) and not is_optional
        field = pa.field(name, data_type, is_optional or is_left_out)
        columns.append(_Column(field, keyword, has_default(default), is_left_out, write, read))
    return columns


def _of_hint(hint: Any, where: str, outer: tuple[Any, ...]) -> tuple[pa.DataType, bool, _Change, _Change]:  # noqa: PLR0911 - one for each kind of type
    """The type of a hint, whether it may be None, and how its values change."""
    if typing.get_origin(hint) is typing.Annotated:
        inner, *extras = typing.get_args(hint)
        chosen = next((extra for extra in extras if isinstance(extra, pa.DataType)), None)
        found = _of_hint(inner, where, outer) if chosen is None else None
        if found is None:
            is_optional = type(None) in typing.get_args(inner)
            return typing.cast("pa.DataType", chosen), is_optional, None, None
        return found
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        if len(others) != 1:
            raise TypeError(f"Field {where} may be of several types: give it one, with or without None")
        data_type, _, write, read = _of_hint(others[0], where, outer)
        return data_type, True, write, read
    if hint in _SIMPLE:
        return _SIMPLE[hint], False, None, None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list or (origin is dict and arguments[0] is str):
        data_type, is_optional, write, read = _of_hint(arguments[-1], f"{where}[]", outer)
        if origin is list:
            kind = pa.list_(pa.field("item", data_type, is_optional))
            return kind, False, *(_each(write, _of_list), _each(read, _of_list))
        kind = pa.map_(pa.string(), pa.field("value", data_type, is_optional))
        return kind, False, *(_each(write, _of_dict), _each(read, _of_dict))
    if is_class(hint) and issubclass(hint, Enum):
        return pa.string(), False, lambda member: member.name, lambda name: hint[name]
    if is_class_of_values(hint):
        columns = _columns(hint, outer)
        inner_kind = hint
        return (
            pa.struct([column.field for column in columns]),
            False,
            lambda obj: _written(columns, obj),
            lambda row: _read(inner_kind, columns, row),
        )
    raise TypeError(
        f"Field {where} is of {hint!r:.100}, which is no column of its own: use int, float, str, bytes, "
        "bool, datetime, date, time, timedelta, an Enum, list[T], dict[str, T], a dataclass or a model, or "
        "name its type as Annotated[T, pa.decimal128(12, 2)]"
    )


def _each(change: _Change, make: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> _Change:
    return None if change is None else make(lambda value: None if value is None else change(value))


def _of_list(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [change(value) for value in values]


def _of_dict(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: {key: change(value) for key, value in values.items()}
