"""Rows that topics store by column, as columns of the newest version (ADR 0130)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from pulsar_ray.data.reading.rows import StoredRows
from pulsar_ray.format.arrow_types import fitted, plain_type, schema_of
from pulsar_ray.format.columnar import rows_of
from pulsar_ray.format.typed_rows import rows_of_payloads
from pulsar_ray.model.topic_schema import TopicSchema

_MAX_GROUP_BYTES = 32 << 20


def rows_type(schema: TopicSchema) -> pa.DataType:
    """Return the type of columns, such as Spark has too. Raises ValueError."""
    return common_type(pa.struct(list(schema_of(schema.text))), "")


_COMMON = {
    pa.null(): pa.utf8(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_utf8(): pa.utf8(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}


def common_type(kind: pa.DataType, path: str) -> pa.DataType:  # noqa: PLR0911 - one for each kind of type
    """Return the type without what Spark lacks. Raises ValueError, which names the column."""
    kind = plain_type(kind)
    if kind in _COMMON:
        return _COMMON[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_decimal256(kind):
        raise ValueError(f"column {path!r} is of type {kind}; columns have at most 38 digits")
    if pa.types.is_struct(kind):
        return pa.struct(
            [(each.name, common_type(each.type, f"{path}.{each.name}".strip("."))) for each in kind]
        )
    if pa.types.is_map(kind):
        return pa.map_(common_type(kind.key_type, path), common_type(kind.item_type, path))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(common_type(kind.value_type, f"{path}[]"))
    return kind


def rows_conversion(target: TopicSchema) -> Callable[[pa.Array], pa.Array]:
    """Return a function that makes rows of any version those of the newest.

    It raises ValueError where that cannot be.
    """
    kind = rows_type(target)
    plain = pa.field("value", plain_type(pa.struct(list(schema_of(target.text)))))

    def convert(rows: pa.Array) -> pa.Array:
        found = fitted(rows, plain, "")
        return found if found.type == kind else _as_common(found, kind)

    return convert


def _as_common(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        parts = [_as_common(part, each.type) for part, each in zip(array.flatten(), kind, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_time(array.type) or pa.types.is_duration(array.type):
        is_short = pa.types.is_time32(array.type)
        return array.cast(pa.int32()).cast(kind) if is_short else array.cast(kind)
    # Nanoseconds are cut to microseconds; all else grows.
    return array.cast(kind, safe=not pa.types.is_timestamp(kind) and not pa.types.is_nested(kind))


def payloads_reading(writer: TopicSchema, target: TopicSchema) -> Callable[[pa.Array], pa.Array]:
    """Return a function that reads messages that were sent alone."""
    written, convert = schema_of(writer.text), rows_conversion(target)

    def read(payloads: pa.Array) -> pa.Array:
        return convert(rows_of(rows_of_payloads(payloads.to_pylist(), written)))

    return read


def groups_of(rows: Iterable[StoredRows], block_bytes: int) -> Iterator[list[StoredRows]]:
    """Divide rows into those of blocks of about so many bytes."""
    limit = min(block_bytes, _MAX_GROUP_BYTES)
    group: list[StoredRows] = []
    size = 0
    for each in rows:
        if group and size + each.held_bytes > limit:
            yield group
            group, size = [], 0
        group.append(each)
        size += each.held_bytes
    if group:
        yield group
