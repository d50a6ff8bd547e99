"""Values as columns, by the versions of their topics' schemas (ADR 0130)."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from pulsar_ray.data.reading.avro_values import CORRUPT_COLUMN
from pulsar_ray.data.reading.row_columns import groups_of, payloads_reading, rows_conversion, rows_type
from pulsar_ray.data.reading.rows import StoredRows, ipc_stream, message_batches
from pulsar_ray.data.reading.schema_columns import Node, parse_definition, resolve
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.topic_schema import TopicSchema, version_number

REASON_COLUMN = "_corrupt_reason"
"""The column behind CORRUPT_COLUMN: the version and why the value cannot be read by it."""
_NUMBERS = {
    "INT8": (">b", pa.int8()),
    "INT16": (">h", pa.int16()),
    "INT32": (">i", pa.int32()),
    "INT64": (">q", pa.int64()),
    "FLOAT": (">f", pa.float32()),
    "DOUBLE": (">d", pa.float64()),
}
_RECORDS = ("AVRO", "JSON")
_MAX_REASON = 400
Read = Callable[[pa.Array], pa.Array]
"""Makes columns of payloads, none null. Raises for any that does not fit."""


@dataclass(frozen=True)
class TopicVersions:
    """The schema that values are read as, and those that wrote them."""

    target: TopicSchema
    written: Mapping[int, TopicSchema]


class TypedValues:
    """Reads values of one topic as columns of its newest schema.

    Raises InvalidConfiguration for a schema whose values are no columns.
    """

    def __init__(self, topic: str, versions: TopicVersions) -> None:
        self._versions = versions
        self.type = column_type(topic, versions.target)
        """The Arrow type of values."""
        self._reads: dict[bytes, Read | str] = {}
        self._conversion: Read | None = None
        self.is_columnar = versions.target.type == "ARROW"
        """Whether rows of a topic may be columns before they are read."""

    def decode(self, values: pa.Array, versions: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Read values by the versions beside them; null is null.

        Returns the columns, and the reasons of the rows that cannot be read, which are null too.
        """
        if values.null_count == len(values):
            return pa.nulls(len(values), self.type), {}
        encoded = pc.dictionary_encode(versions, null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        is_value = values.is_valid().to_numpy(zero_copy_only=False)
        pieces: list[pa.Array] = []
        places: list[Any] = []
        reasons: dict[int, str] = {}
        for code, version in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero((codes == code) & is_value)
            if not len(rows):
                continue
            found, unread = self._of_version(version or b"", values, rows)
            pieces.append(found)
            places.append(rows)
            reasons |= {int(rows[row]): reason for row, reason in unread.items()}
        columns = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        order = places[0] if len(places) == 1 else np.concatenate(places)
        if len(order) == len(values) and len(places) == 1:
            return columns, reasons
        taken = np.full(len(values), -1, np.int64)
        taken[order] = np.arange(len(order))
        return columns.take(pa.array(taken, mask=taken < 0)), reasons

    def rows_of(self, stored: StoredRows) -> tuple[pa.Array, dict[int, str], list[bytes | None] | None]:
        """Read the values of stored rows, without making payloads of those that are columns.

        Returns the columns, the reasons of those that cannot be read, and payloads where there are such.
        """
        version = stored.block.metadata.schema_version or b""
        if not stored.block.is_columnar:
            payloads = stored.payloads()
            versions = pa.repeat(pa.scalar(version, pa.binary()), stored.row_count)
            return *self.decode(pa.array(payloads, pa.binary()), versions), payloads
        rows = stored.of(stored.block.rows())
        read = self._conversion or rows_conversion(self._versions.target)
        self._conversion = read
        pieces: list[pa.Array] = []
        reasons: dict[int, str] = {}
        self._read_all(read, rows, 0, pieces, reasons)
        said = {row: f"{_said(version)}: {reason}"[:_MAX_REASON] for row, reason in reasons.items()}
        values = stored.payloads() if reasons else None
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces), said, values

    def _of_version(self, version: bytes, values: pa.Array, rows: Any) -> tuple[pa.Array, dict[int, str]]:
        said = _said(version)
        read = self._reads.get(version)
        if read is None:
            read = self._reads[version] = self._read_of(version)
        if isinstance(read, str):
            return pa.nulls(len(rows), self.type), dict.fromkeys(
                range(len(rows)), f"{said}: {read}"[:_MAX_REASON]
            )
        payloads = values if len(rows) == len(values) else values.take(pa.array(rows))
        pieces: list[pa.Array] = []
        reasons: dict[int, str] = {}
        self._read_all(read, payloads, 0, pieces, reasons)
        found = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        return found, {row: f"{said}: {reason}"[:_MAX_REASON] for row, reason in reasons.items()}

    def _read_all(
        self, read: Read, payloads: pa.Array, first: int, pieces: list[pa.Array], reasons: dict[int, str]
    ) -> None:
        """Read rows, and halves of them until those are found that cannot be read."""
        try:
            found = read(payloads)
        except Exception as error:  # noqa: BLE001 - bytes of any kind lead fastavro and Arrow anywhere
            count = len(payloads)
            if count == 1:
                pieces.append(pa.nulls(1, self.type))
                reasons[first] = f"{type(error).__name__}: {error}"
                return
            half = count // 2
            self._read_all(read, payloads.slice(0, half), first, pieces, reasons)
            self._read_all(read, payloads.slice(half), first + half, pieces, reasons)
            return
        pieces.append(found)

    def _read_of(self, version: bytes) -> Read | str:
        """Return a function that reads a version, or the reason why nothing does."""
        target = self._versions.target
        number = version_number(version)
        if not version:
            # Of producers without a schema; consumers read their values by their own alone.
            writer: TopicSchema | None = target
        elif number is None:
            return "it is none that a registry gives"
        else:
            writer = self._versions.written.get(number)
        if writer is None:
            return "the topic has no schema of that number, or it was deleted by force"
        if writer.type != target.type:
            return f"it was written as {writer.type}, and the newest version is {target.type}"
        try:
            return _reading(writer, target)
        except ValueError as error:
            return str(error)


def column_type(topic: str, schema: TopicSchema) -> pa.DataType:
    """Return the Arrow type of a schema's values. Raises InvalidConfiguration where they are no columns."""
    if schema.type in _NUMBERS:
        return _NUMBERS[schema.type][1]
    if schema.type == "STRING":
        return pa.utf8()
    try:
        if schema.type == "ARROW":
            return rows_type(schema)
        if schema.type in _RECORDS:
            return parse_definition(schema.text).arrow_type()
        raise ValueError(f"values of type {schema.type} are no columns")
    except ValueError as error:
        raise InvalidConfiguration(
            f"the schema of {topic} has no columns: {error}; read the values as bytes, without typed=True"
        ) from None


def _said(version: bytes) -> str:
    number = version_number(version)
    if not version:
        return "without a version, read by the newest"
    return f"version {version!r:.40}" if number is None else f"version {number}"


def _reading(writer: TopicSchema, target: TopicSchema) -> Read:
    if writer.type == "STRING":
        return lambda payloads: _checked(payloads.cast(pa.utf8()))
    if writer.type in _NUMBERS:
        return _number_reading(*_NUMBERS[writer.type])
    if writer.type == "ARROW":
        return payloads_reading(writer, target)
    written, wanted = parse_definition(writer.text), parse_definition(target.text)
    if writer.type == "AVRO":
        return _avro_reading(writer, written, wanted)
    return _JsonReading(written, wanted, is_java=writer.is_java)


def _checked(array: pa.Array) -> pa.Array:
    array.validate(full=True)
    return array


def _number_reading(form: str, kind: pa.DataType) -> Read:
    number = struct.Struct(form)
    return lambda payloads: pa.array([number.unpack(each)[0] for each in payloads.to_pylist()], kind)


def _avro_reading(writer: TopicSchema, written: Node, wanted: Node) -> Read:
    try:
        from fastavro import parse_schema  # noqa: PLC0415 - only who reads Avro has it
        from fastavro.schema import SchemaParseException  # noqa: PLC0415

        from pulsar_ray.schema.nested_avro import reader_of  # noqa: PLC0415
    except ImportError:
        raise InvalidConfiguration("values in Avro need fastavro: pip install 'pulsar-ray[schema]'") from None
    resolution = resolve(written, wanted)
    try:
        schema = parse_schema(_plain_logic(json.loads(writer.text)))
    except SchemaParseException as error:
        raise ValueError(f"its schema is none of Avro: {error}") from None
    reader = reader_of(schema)

    def read(payloads: pa.Array) -> pa.Array:
        rows = []
        for payload in payloads.to_pylist():
            stream = io.BytesIO(payload)
            rows.append(reader(stream, schema, None))
            if stream.tell() != len(payload):
                raise ValueError(f"{len(payload) - stream.tell()} bytes follow the value")
        return resolution.convert(pa.array(rows, resolution.written))

    return read


def _plain_logic(schema: Any) -> Any:
    """A definition whose only logical types are decimals."""
    if isinstance(schema, list):
        return [_plain_logic(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {key: _plain_logic(each) for key, each in schema.items() if key not in ("default", "doc")}
    if copied.get("logicalType") not in (None, "decimal"):
        del copied["logicalType"]
    return copied


class _JsonReading:
    """Reads JSON by Arrow's parser, and what that cannot take by Python's."""

    def __init__(self, written: Node, wanted: Node, *, is_java: bool) -> None:
        # Python's clients write enums by their values, of which the registry knows nothing.
        self._resolution = resolve(written, wanted, checks_symbols=is_java)
        self._plain = _json_value(written, is_java=is_java)
        self._is_fast = _arrow_parses(written, self._resolution.written, is_java=is_java)

    def __call__(self, payloads: pa.Array) -> pa.Array:
        rows = self._parsed(payloads) if self._is_fast else None
        if rows is None:
            plain = [self._plain(json.loads(each), "") for each in payloads.to_pylist()]
            rows = pa.array(plain, self._resolution.written)
        if rows.null_count:
            raise ValueError("the value is null")
        return self._resolution.convert(rows)

    def _parsed(self, payloads: pa.Array) -> pa.Array | None:
        """The rows by Arrow's parser, None if it fails.

        Each value stands beside its number: one that ends early, or goes on behind its end, moves those of
        others or makes a column of its own, and is found.
        """
        count = len(payloads)
        text = b"".join(
            b'{"v":%b,"n":%d}\n' % (each, number) for number, each in enumerate(payloads.to_pylist())
        )
        read = pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1024))
        try:
            table = pyarrow.json.read_json(io.BytesIO(text), read, self._options("infer"))
            if table.column_names != ["v", "n"]:
                return None
            if table["v"].type != self._resolution.written:  # with fields that its version does not know
                table = pyarrow.json.read_json(io.BytesIO(text), read, self._options("ignore"))
            if table.num_rows != count or not np.array_equal(table["n"].to_numpy(), np.arange(count)):
                return None
            rows = table["v"].combine_chunks()
            rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
            rows.validate(full=True)
        except (pa.ArrowException, ValueError, OverflowError):
            return None
        return rows

    def _options(self, of_unknown_fields: str) -> pyarrow.json.ParseOptions:
        return pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("v", self._resolution.written), ("n", pa.int64())]),
            newlines_in_values=True,
            unexpected_field_behavior=of_unknown_fields,
        )


def _arrow_parses(written: Node, kind: pa.DataType, *, is_java: bool) -> bool:
    """Whether Arrow's parser takes these types: it knows no maps, and no base64."""
    if pa.types.is_map(kind):
        return False
    if is_java and pa.types.is_binary(kind):
        return False
    if pa.types.is_list(kind):
        assert written.items is not None
        return _arrow_parses(written.items, kind.value_type, is_java=is_java)
    if pa.types.is_struct(kind):
        nodes = {each.name: each.node for each in written.fields}
        return all(_arrow_parses(nodes[each.name], each.type, is_java=is_java) for each in kind)
    return True


def _json_value(node: Node, *, is_java: bool) -> Callable[[Any, str], Any]:
    """Return a function that makes values of JSON those that pyarrow takes.

    It raises ValueError, which names the field.
    """
    if node.kind == "record":
        fields = {each.name: _json_value(each.node, is_java=is_java) for each in node.fields}

        def take_record(value: Any, path: str) -> Any:
            if value is None:
                return None
            if not isinstance(value, dict):
                raise ValueError(f"{path or 'the value'} is no object")
            return {
                name: take(value.get(name), f"{path}.{name}" if path else name)
                for name, take in fields.items()
            }

        return take_record
    if node.items is not None:
        item, is_map = _json_value(node.items, is_java=is_java), node.kind == "map"

        def take_items(value: Any, path: str) -> Any:
            if value is None:
                return None
            if not isinstance(value, dict if is_map else list):
                raise ValueError(f"{path} is no {node.kind}")
            if isinstance(value, dict):
                return [(key, item(each, f"{path}[]")) for key, each in value.items()]
            return [item(each, f"{path}[]") for each in value]

        return take_items
    return lambda value, path: None if value is None else _json_plain(node, value, path, is_java=is_java)


def _json_plain(node: Node, value: Any, path: str, *, is_java: bool) -> Any:
    if node.kind in ("bytes", "fixed") and node.logical is None:
        if not isinstance(value, str):
            raise ValueError(f"{path} is no text of bytes")
        return base64.b64decode(value, validate=True) if is_java else value.encode("utf-8", "surrogateescape")
    if node.kind == "enum":
        if isinstance(value, (dict, list)):
            raise ValueError(f"{path} is no enum")
        return value if isinstance(value, str) else json.dumps(value)
    if node.kind in ("int", "long", "float", "double") and (
        isinstance(value, bool)
        or not isinstance(value, int if node.kind in ("int", "long") else (int, float))
    ):
        raise ValueError(f"{path} is {value!r:.60}, and no {node.kind}")
    if node.logical == "decimal":
        return Decimal(str(value))
    return value


def encode_typed_blocks(
    rows: Iterable[StoredRows], source: int, block_bytes: int, columns: Sequence[str], typed: TypedValues
) -> Iterator[tuple[bytes, int]]:
    """Yield all rows as `encode_blocks` does, with typed values, CORRUPT_COLUMN and REASON_COLUMN."""
    for batch in typed_batches(rows, source, block_bytes, columns, typed):
        yield ipc_stream(batch), batch.num_rows


def typed_batches(
    rows: Iterable[StoredRows], source: int, block_bytes: int, columns: Sequence[str], typed: TypedValues
) -> Iterator[pa.RecordBatch]:
    """Yield all rows as `message_batches` does, with typed values, CORRUPT_COLUMN and REASON_COLUMN."""
    if typed.is_columnar:
        yield from _columnar_batches(rows, source, block_bytes, columns, typed)
        return
    read = columns if "schema_version" in columns else (*columns, "schema_version")
    for batch in message_batches(rows, source, block_bytes, read):
        values = batch.column("value")
        found, reasons = typed.decode(values, batch.column("schema_version"))
        yield _with_values(batch, columns, found, _unread(values, reasons))


def _columnar_batches(
    rows: Iterable[StoredRows], source: int, block_bytes: int, columns: Sequence[str], typed: TypedValues
) -> Iterator[pa.RecordBatch]:
    others = [name for name in columns if name != "value"] or ["source"]
    for group in groups_of(rows, block_bytes):
        parts = list(message_batches(group, source, columns=others))
        batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        found, reasons, payloads = [], {}, {}
        first = 0
        for stored in group:
            read, said, values = typed.rows_of(stored)
            found.append(read)
            for row, reason in said.items():
                reasons[first + row] = reason
                payloads[first + row] = values[row] if values is not None else None
            first += stored.row_count
        joined = found[0] if len(found) == 1 else pa.concat_arrays(found)
        unread = pa.array([payloads.get(row) for row in range(first)], pa.binary()) if reasons else joined
        yield _with_values(batch, columns, joined, _unread(unread, reasons))


def _with_values(
    batch: pa.RecordBatch, columns: Sequence[str], values: pa.Array, unread: list[pa.Array]
) -> pa.RecordBatch:
    fields, arrays = [], []
    for name in columns:
        is_value = name == "value"
        fields.append(pa.field("value", values.type) if is_value else batch.schema.field(name))
        arrays.append(values if is_value else batch.column(name))
    fields += [pa.field(CORRUPT_COLUMN, pa.binary()), pa.field(REASON_COLUMN, pa.utf8())]
    return pa.RecordBatch.from_arrays([*arrays, *unread], schema=pa.schema(fields))


def _unread(values: pa.Array, reasons: Mapping[int, str]) -> list[pa.Array]:
    if not reasons:
        return [pa.nulls(len(values), pa.binary()), pa.nulls(len(values), pa.utf8())]
    is_read = np.ones(len(values), np.bool_)
    is_read[list(reasons)] = False
    unread = pc.if_else(pa.array(is_read), pa.scalar(None, pa.binary()), values)
    # Texts of errors may hold bytes of values, which need not be UTF-8.
    texts = [None] * len(values)
    said: list[str | None] = list(texts)
    for row, reason in reasons.items():
        said[row] = reason.encode("utf-8", "replace").decode()
    return [unread, pa.array(said, pa.utf8())]
