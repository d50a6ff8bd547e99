"""Schemas that topics get of written columns, and rows as the payloads of these."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.format.arrow_types import plain_type, schema_of, schema_text
from pulsar_ray.format.table import normalize_table
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema

KINDS = ("avro", "json", "arrow")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.utf8(): "string",
    pa.large_utf8(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
}


@dataclass(frozen=True)
class RowSchema:
    """A schema that payloads are made by, and how."""

    registered: TopicSchema
    kind: str = ""
    """One of KINDS; none where payloads are there already."""

    def schema(self) -> Schema:
        """Return what producers register. They are given payloads, or columns of rows."""
        if self.kind == "arrow":
            from pulsar_ray.schema.arrow_schema import ArrowSchema  # noqa: PLC0415 - only who sends rows

            return ArrowSchema(schema_of(self.registered.text))
        return _Payloads(self.registered)

    def made(self, table: pa.Table) -> pa.Table:
        """Return a table with payloads in place of rows, unless rows are sent as columns.

        Raises ValueError for a value that the schema cannot take.
        """
        if not self.kind:
            return normalize_table(table)
        place = table.column_names.index("value")
        rows = _joined(table.column(place))
        if self.kind == "arrow":
            others = table.set_column(place, "value", pa.nulls(len(rows), pa.binary()))
            return normalize_table(others).set_column(0, "value", rows)
        encode = _avro_encoder(self.registered.text) if self.kind == "avro" else _json
        try:
            payloads = [None if row is None else encode(row) for row in plain_rows(rows)]
        except Exception as error:
            raise ValueError(f"a value does not fit the schema: {type(error).__name__}: {error}") from error
        return normalize_table(table.set_column(place, "value", pa.array(payloads, pa.binary())))

    def sent(self, block: pa.RecordBatch) -> pa.Table | pa.RecordBatch:
        """Return a part of such a table as `send_arrow` takes it."""
        if self.kind != "arrow":
            return block
        return _as_columns(pa.Table.from_batches([block]))


class _Payloads(Schema):
    """Registers a schema whose payloads are made elsewhere."""

    def __init__(self, registered: TopicSchema) -> None:
        super().__init__(bytes, SchemaType[registered.type], registered.text, registered.type)
        self._registered = registered

    def registered(self) -> TopicSchema:
        return self._registered

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj
        return data


def row_schema(given: object, value_type: pa.DataType) -> RowSchema | None:
    """Return the schema that values are written with; None for bytes.

    `given` is one of KINDS, which make it of the type's fields, a Schema whose payloads the values are, or
    None. Raises InvalidConfiguration, which names the column, for what has no such schema.
    """
    is_rows = pa.types.is_struct(value_type)
    if given is None:
        if is_rows:
            raise InvalidConfiguration(
                f"value is of type {value_type}: give schema='avro', 'json' or 'arrow'"
            )
        return None
    if isinstance(given, str) and given in KINDS:
        if not is_rows:
            raise InvalidConfiguration(f"schema={given!r} is of rows, and value is of type {value_type}")
        return RowSchema(_registered(given, value_type), given)
    found = given if isinstance(given, TopicSchema) else None
    if isinstance(given, Schema) and type(given) is not BytesSchema:
        found = given.registered()
    if found is None:
        raise InvalidConfiguration(
            f"schema={given!r:.80}: give 'avro', 'json' or 'arrow', or the schema that values are payloads of"
        )
    if is_rows:
        raise InvalidConfiguration(
            f"value is of type {value_type}, and with a schema object has to be payloads"
        )
    return RowSchema(found)


def _registered(kind: str, rows: pa.StructType) -> TopicSchema:
    try:
        if kind == "arrow":
            return TopicSchema(SchemaType.ARROW.name, schema_text(pa.schema(list(plain_type(rows)))))
        definition = _record(rows, "Row", kind)
    except ValueError as error:
        raise InvalidConfiguration(f"schema={kind!r}: {error}") from None
    return TopicSchema(kind.upper(), json.dumps(definition))


def _record(rows: pa.StructType, name: str, kind: str) -> dict[str, Any]:
    fields = []
    for part in rows:
        if not _NAME.match(part.name):
            raise ValueError(
                f"column {part.name!r} has no name that a field may have (letters, digits, _): rename it"
            )
        found = _type(part.type, f"{name}_{part.name}", kind)
        # Fields that have a default can be added and removed later.
        fields.append(
            {"name": part.name, "type": ["null", found], "default": None}
            if part.nullable
            else {"name": part.name, "type": found}
        )
    if not fields:
        raise ValueError(f"{name} has no columns")
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: pa.DataType, name: str, form: str) -> Any:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_decimal(kind):
        if form == "json":
            raise ValueError(
                f"column {name[4:]!r} is a decimal, which JSON has not: cast it, or use 'avro' or 'arrow'"
            )
        if not 0 <= kind.scale <= kind.precision:
            raise ValueError(f"column {name[4:]!r} is of type {kind}, whose scale AVRO has not: cast it")
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_struct(kind):
        return _record(kind, name, form)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _items(kind.item_field, name, form)}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _items(kind.value_field, name, form)}
    raise ValueError(f"column {name[4:]!r} is of type {kind}, which is none of {form.upper()}: cast it")


def _items(item: pa.Field, name: str, form: str) -> Any:
    found = _type(item.type, name, form)
    return ["null", found] if item.nullable else found


def plain_rows(rows: pa.Array) -> list[Any]:
    """Return rows as dicts, with times and days as numbers."""
    timed = rows.cast(_changed(rows.type, _microseconds))
    numbered = timed.cast(_changed(timed.type, _numbers))
    plain: list[Any] = numbered.to_pylist()
    # Only pyarrow from 19 on can be asked for dicts.
    return [_with_dicts(row, numbered.type) for row in plain] if "map<" in str(numbered.type) else plain


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its maps as dicts."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        items = {key: _with_dicts(item, kind.item_type) for key, item in value}
        if len(items) < len(value):
            raise ValueError(f"a map has a key twice: {[key for key, _ in value]}")
        return items
    if pa.types.is_struct(kind):
        return {each.name: _with_dicts(value[each.name], each.type) for each in kind}
    if pa.types.is_list(kind):
        return [_with_dicts(item, kind.value_type) for item in value]
    return value


def _microseconds(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with all types in it changed."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _changed(each.type, change), each.nullable) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _changed(kind.item_type, change))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", _changed(kind.value_type, change), kind.value_field.nullable))
    return change(kind)


def _avro_encoder(text: str) -> Callable[[Any], bytes]:
    try:
        from fastavro import parse_schema, schemaless_writer  # noqa: PLC0415 - only who writes Avro has it
    except ImportError:
        raise InvalidConfiguration("values in Avro need fastavro: pip install 'pulsar-ray[schema]'") from None
    schema = parse_schema(json.loads(text))

    def encode(row: Any) -> bytes:
        stream = io.BytesIO()
        schemaless_writer(stream, schema, row)
        return stream.getvalue()

    return encode


def _json(row: Any) -> bytes:
    return json.dumps(row, default=_json_bytes, allow_nan=False, separators=(",", ":")).encode()


def _json_bytes(value: bytes) -> str:
    # As JsonSchema has bytes: those that are not UTF-8 become lone surrogates.
    return value.decode("utf-8", "surrogateescape")


def _joined(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def _as_columns(table: pa.Table) -> pa.Table:
    rows = _joined(table.column("value"))
    names = [field.name for field in rows.type]
    columns = dict(zip(names, rows.flatten(), strict=True))
    for name in table.column_names:
        if name != "value":
            columns[f"__{name}" if name in columns else name] = table.column(name)
    if rows.null_count:
        columns["__tombstone" if "tombstone" in names else "tombstone"] = rows.is_null()
    return pa.table(columns)
