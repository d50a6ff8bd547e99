"""Avro values as Arrow structs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa

from pulsar_ray.data.reading.rows import StoredRows, ipc_stream, message_batches
from pulsar_ray.errors import InvalidConfiguration

PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.utf8(),
}
_MICROSECONDS = pa.timestamp("us", tz="UTC")
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _MICROSECONDS,
    ("long", "timestamp-micros"): _MICROSECONDS,
}
MAX_DIGITS = 38
_NO_STRUCT = (pa.ArrowException, ValueError, TypeError, OverflowError)


class AvroValues:
    """Reads values that were written with one Avro schema, a record, each without a header.

    Dates, timestamps and decimals have Arrow's own types, enums are text; other logical types are read as
    the types under them. Raises InvalidConfiguration for a schema that is none, is recursive, or has unions
    of more than null and one type.
    """

    def __init__(self, schema_json: str) -> None:
        try:
            from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 - only who reads Avro has it
            from fastavro.schema import SchemaParseException  # noqa: PLC0415
        except ImportError:
            raise InvalidConfiguration(
                "Avro values are read by fastavro, which is not here: pip install fastavro"
            ) from None
        try:
            given = json.loads(schema_json)
            parse_schema(given)
            self.type = _Types().arrow_type(given)
            """The Arrow type of values, a struct."""
        except InvalidConfiguration:
            raise
        except (ValueError, TypeError, KeyError, SchemaParseException) as error:
            # Of a part that is missing in a definition a KeyError says the name alone.
            reason = f"{error} is missing" if isinstance(error, KeyError) else error
            raise InvalidConfiguration(f"avro_schema={schema_json!r} is no Avro schema: {reason}") from None
        if not pa.types.is_struct(self.type):
            raise InvalidConfiguration(f"avro_schema={schema_json!r} is no record: wrap the value in one")
        self._schema = parse_schema(_without_other_logic(given))
        self._read = schemaless_reader

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Read values: (structs, the values that cannot be read); null is null in both."""
        given = values.to_pylist()
        rows = [None if value is None else self._record(value) for value in given]
        try:
            structs = pa.array(rows, self.type)
        except _NO_STRUCT:
            rows = [row if self._fits(row) else None for row in rows]
            structs = pa.array(rows, self.type)
        unread = [value if row is None else None for value, row in zip(given, rows, strict=True)]
        return structs, pa.array(unread, pa.binary())

    def _record(self, value: bytes) -> dict[str, Any] | None:
        stream = BytesIO(value)
        try:
            row: Any = self._read(stream, self._schema, None)
        except Exception:  # noqa: BLE001 - fastavro raises whatever bytes of any kind lead to
            return None
        return row if stream.tell() == len(value) else None

    def _fits(self, row: dict[str, Any] | None) -> bool:
        try:
            pa.array([row], self.type)
        except _NO_STRUCT:
            return False
        return True


class _Types:
    """Arrow types of the parts of one schema, with its names."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}

    def arrow_type(self, schema: Any, namespace: str = "") -> pa.DataType:
        if isinstance(schema, str):
            return PRIMITIVES[schema] if schema in PRIMITIVES else self._known(schema, namespace)
        if isinstance(schema, list):
            return self._of_union(schema, namespace)
        if not isinstance(schema["type"], str):
            return self.arrow_type(schema["type"], namespace)
        return self._of_kind(schema["type"], schema, namespace)

    def _of_kind(self, kind: str, schema: Any, namespace: str) -> pa.DataType:
        logical = schema.get("logicalType")
        makers: dict[str, Callable[[], pa.DataType]] = {
            "array": lambda: pa.list_(self.arrow_type(schema["items"], namespace)),
            "map": lambda: pa.map_(pa.utf8(), self.arrow_type(schema["values"], namespace)),
        }
        if (kind, logical) in LOGICAL:
            return LOGICAL[kind, logical]
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return self._decimal(schema)
        if kind in makers:
            return makers[kind]()
        is_definition = kind in ("record", "error", "enum", "fixed")
        return self._define(kind, schema, namespace) if is_definition else self.arrow_type(kind, namespace)

    def _define(self, kind: str, schema: Any, namespace: str) -> pa.DataType:
        name, namespace = _full_name(schema["name"], schema.get("namespace", namespace))
        self._named[name] = None
        if kind == "enum":
            found = pa.utf8()
        elif kind == "fixed":
            found = pa.binary()
        else:
            fields = [(each["name"], self.arrow_type(each["type"], namespace)) for each in schema["fields"]]
            found = pa.struct(fields)
        self._named[name] = found
        return found

    def _known(self, name: str, namespace: str) -> pa.DataType:
        full = name if name in self._named else _full_name(name, namespace)[0]
        found = self._named.get(full)
        if found is None:
            raise InvalidConfiguration(
                f"avro_schema: {name!r} holds itself, or is no type; a column has no such type"
            )
        return found

    def _of_union(self, schema: Sequence[Any], namespace: str) -> pa.DataType:
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise InvalidConfiguration(
                f"avro_schema: the union {schema!r} has no one type of a column; only null and one other "
                "type may be in a union"
            )
        return self.arrow_type(others[0], namespace)

    @staticmethod
    def _decimal(schema: Any) -> pa.DataType:
        digits = schema["precision"]
        if digits > MAX_DIGITS:
            raise InvalidConfiguration(
                f"avro_schema: a decimal of {digits} digits; a column has at most {MAX_DIGITS}"
            )
        return pa.decimal128(digits, schema.get("scale", 0))


def _full_name(name: str, namespace: str) -> tuple[str, str]:
    """The full name of a type, and the namespace that it is in."""
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{namespace}.{name}" if namespace else name), namespace


def _without_other_logic(schema: Any) -> Any:
    """A schema without those logical types that have no Arrow type here."""
    if isinstance(schema, list):
        return [_without_other_logic(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {
        key: _without_other_logic(each) for key, each in schema.items() if key not in ("default", "doc")
    }
    logical = copied.get("logicalType")
    if isinstance(logical, str) and logical != "decimal" and (copied.get("type"), logical) not in LOGICAL:
        del copied["logicalType"]
    return copied


CORRUPT_COLUMN = "_corrupt_record"
"""The last column of these blocks: the bytes of a value that cannot be read.

The value of such a row is null.
"""


def encode_avro_blocks(
    rows: Iterable[StoredRows], source: int, block_bytes: int, columns: Sequence[str], avro: AvroValues
) -> Iterator[tuple[bytes, int]]:
    """Yield all rows as `encode_blocks` does, with structs in place of values, and CORRUPT_COLUMN."""
    for batch in message_batches(rows, source, block_bytes, columns):
        typed = _typed(batch, avro)
        yield ipc_stream(typed), typed.num_rows


def _typed(batch: pa.RecordBatch, avro: AvroValues) -> pa.RecordBatch:
    structs, unread = avro.decode(batch.column("value"))
    value = pa.field("value", avro.type)
    fields = [value if field.name == "value" else field for field in batch.schema]
    arrays = [structs if field.name == "value" else batch.column(field.name) for field in batch.schema]
    schema = pa.schema([*fields, pa.field(CORRUPT_COLUMN, pa.binary())])
    return pa.RecordBatch.from_arrays([*arrays, unread], schema=schema)
