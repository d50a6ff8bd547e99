"""Choose, check and sort the columns of a DataFrame that become messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from pulsar_ray.errors import InvalidConfiguration


class IfPresent:
    """Stands for the column of the argument's own name, if the DataFrame has one."""

    def __repr__(self) -> str:
        return "IF_PRESENT"


IF_PRESENT: Final = IfPresent()
ColumnArgument = str | Column | IfPresent | None

_TEXT_REMEDY = "cast it to string, or give to_json(struct(...)) of several columns"
_REMEDIES = {
    "value": _TEXT_REMEDY,
    "key": "cast it to string",
    "ordering_key": "cast it to string",
    "properties": "make it with map('name', 'text', ...) of strings",
    "event_time": "cast it to timestamp, or give ms since 1970 as a bigint",
}
_EXPECTED = {
    "value": "binary or string",
    "key": "string or binary",
    "ordering_key": "string or binary",
    "properties": "map<string,string>",
    "event_time": "timestamp or bigint",
}


def message_columns(
    frame: DataFrame, arguments: dict[str, ColumnArgument], *, has_rows: bool = False
) -> DataFrame:
    """Select what becomes messages, under the names and types that `row_table` takes.

    value is binary, or with `has_rows` a struct, of the other columns where no column has that name; keys
    stay binary or string; properties is an array of its entries, sorted by name, which Spark can sort and
    hash rows by as it cannot by maps; event_time is in ms. Raises InvalidConfiguration naming the argument,
    the column and its type.
    """
    if frame.isStreaming:
        raise InvalidConfiguration(
            "the DataFrame is a stream: write its batches, frame.writeStream.foreachBatch(lambda batch, "
            "batch_id: write(batch, topic, name=..., batch_id=batch_id))"
        )
    chosen = {}
    for name, argument in arguments.items():
        is_whole = (
            has_rows and name == "value" and isinstance(argument, IfPresent) and name not in frame.columns
        )
        column = _whole_row(frame, arguments) if is_whole else _column(frame, name, argument)
        if column is not None:
            chosen[name] = column.alias(name)
    selected = frame.select(*chosen.values())
    for field in selected.schema.fields:
        if has_rows and field.name == "value":
            if not isinstance(field.dataType, StructType):
                raise InvalidConfiguration(
                    f"value={arguments['value']!r} has type {field.dataType.simpleString()}, and the "
                    "schema is of rows: give a struct(...) of columns, or leave value out for all columns"
                )
        elif not _fits(field.name, field.dataType):
            argument = arguments[field.name]
            is_by_name = isinstance(argument, IfPresent)
            source = (
                f"the column {field.name!r}, sent as it has that name,"
                if is_by_name
                else f"{field.name}={argument!r}"
            )
            way_out = (
                f", or leave it out with {field.name}=None" if is_by_name and field.name != "value" else ""
            )
            raise InvalidConfiguration(
                f"{source} has type {field.dataType.simpleString()}, not {_EXPECTED[field.name]}: "
                f"{_REMEDIES[field.name]}{way_out}"
            )
    return selected.select(
        [_SENT[field.name](F.col(field.name), field.dataType).alias(field.name) for field in selected.schema]
    )


def _whole_row(frame: DataFrame, arguments: dict[str, ColumnArgument]) -> Column:
    taken = {name for name, argument in arguments.items() if isinstance(argument, IfPresent)}
    names = [name for name in frame.columns if name not in taken]
    if not names:
        raise InvalidConfiguration("value: the DataFrame has no columns that a row could be made of")
    return F.struct(*(frame[f"`{name.replace('`', '``')}`"] for name in names))


def _column(frame: DataFrame, name: str, argument: ColumnArgument) -> Column | None:
    if argument is None:
        if name == "value":
            raise InvalidConfiguration(
                "value=None: every message has a value; give a column (null in it is a tombstone)"
            )
        return None
    if isinstance(argument, Column):
        return argument
    wanted = name if isinstance(argument, IfPresent) else argument
    if not isinstance(wanted, str):
        raise InvalidConfiguration(f"{name}={argument!r} is neither the name of a column nor a Column")
    if wanted in frame.columns:
        return frame[f"`{wanted.replace('`', '``')}`"]
    if isinstance(argument, IfPresent) and name != "value":
        return None
    raise InvalidConfiguration(
        f"{name}: the DataFrame has no column {wanted!r}; there are {', '.join(frame.columns)}"
    )


def _fits(name: str, kind: DataType) -> bool:
    if isinstance(kind, NullType):
        return True
    if name == "properties":
        return isinstance(kind, MapType) and all(
            isinstance(part, (StringType, NullType)) for part in (kind.keyType, kind.valueType)
        )
    if name == "event_time":
        return isinstance(kind, (TimestampType, LongType, IntegerType, ShortType, ByteType))
    return isinstance(kind, (BinaryType, StringType))


def _entries(column: Column, kind: DataType) -> Column:
    if isinstance(kind, NullType):
        column = F.lit(None).cast("map<string,string>")
    entries = F.coalesce(F.map_entries(column), F.array().cast("array<struct<key:string,value:string>>"))
    return F.array_sort(entries)


def _text(column: Column, kind: DataType) -> Column:
    return column.cast("string") if isinstance(kind, NullType) else column


def _milliseconds(column: Column, kind: DataType) -> Column:
    if isinstance(kind, TimestampType):
        # Rounded down, before 1970 too.
        return F.expr("unix_millis(event_time)")
    return column.cast("bigint")


_SENT: dict[str, Callable[[Column, DataType], Column]] = {
    "value": lambda column, kind: column if isinstance(kind, StructType) else column.cast("binary"),
    "key": _text,
    "ordering_key": _text,
    "properties": _entries,
    "event_time": _milliseconds,
}


def in_repeatable_order(messages: DataFrame, tasks: int) -> DataFrame:
    """Divide rows among tasks and sort them, by nothing but what they hold.

    So the same rows come in the same order whatever ran before. Rows of one key (the ordering key before the
    key) are in one task. They are sorted by time first; rows that are the same in all may change places.
    """
    columns: Sequence[Any] = [F.col(name) for name in messages.columns]
    place = _by_key(messages, F.xxhash64(*columns))
    first = [name for name in ("event_time", *_KEYS) if name in messages.columns]
    rest = [name for name in messages.columns if name not in first]
    return messages.repartition(tasks, place).sortWithinPartitions(*first, *rest)


def in_smaller_parts(messages: DataFrame, parts: int) -> DataFrame:
    """Divide rows among more partitions by key, in the order they had."""
    numbered = messages.withColumn(_ROW, F.monotonically_increasing_id())
    return numbered.repartition(parts, _by_key(messages, F.col(_ROW))).sortWithinPartitions(_ROW).drop(_ROW)


_KEYS = ("key", "ordering_key")
_ROW = "pulsar_ray_row"


def _by_key(messages: DataFrame, without_key: Column) -> Column:
    """Return a number that rows of one key share, the ordering key before the key."""
    place = without_key
    for name in _KEYS:
        if name in messages.columns:
            is_none = F.col(name).isNull() | (F.length(F.col(name)) == 0)
            place = F.when(is_none, place).otherwise(F.xxhash64(F.col(name)))
    return place
