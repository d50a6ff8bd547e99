"""Avro: values of a class, or dicts by a definition."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.options.schema import Schema
from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray.schema.codecs import codec_of, too_deep
from pulsar_ray.schema.definition import Record
from pulsar_ray.schema.forms import AVRO, WRITES_AVRO
from pulsar_ray.schema.nested_avro import named_types, reader_of, writer_of

__all__ = ["HAS_AVRO", "AvroSchema", "Record", "Schema"]

_LONGEST_TEXT, _END_OF_TEXT = 300, 100

HAS_AVRO = importlib.util.find_spec("fastavro") is not None


class AvroSchema(Schema):
    """Values of a class as Avro, or dicts by a definition.

    The class is a Record class, a dataclass or a pydantic model.

    The definition is what an Avro schema's JSON says, as a dict. Raises OperationNotSupported where fastavro
    is missing, and ValueError for a definition that is no record of Avro.
    """

    def __init__(self, record_cls: Any, schema_definition: Any = None) -> None:
        if not HAS_AVRO:
            raise OperationNotSupported("AvroSchema needs fastavro: pip install 'pulsar-ray[schema]'")
        if record_cls is None and schema_definition is None:
            raise AssertionError("The param record_cls and schema_definition shouldn't be both None.")
        self._codec = None if record_cls is None else codec_of(record_cls)
        definition = schema_definition if self._codec is None else self._codec.definition()
        self._definition = definition
        self._parsed = _parsed(definition)
        self._filling = parsed_filling(definition)
        # Found once: an import in each call costs as much as a short value.
        self._reader, self._writer = reader_of(self._parsed), writer_of(self._parsed)
        super().__init__(record_cls, SchemaType.AVRO, json.dumps(definition, indent=1), "AVRO")

    def encode(self, obj: Any) -> bytes:
        buffer = io.BytesIO()
        try:
            if self._codec is not None:
                self._validate_object_type(obj)
                obj = self._codec.write(obj, WRITES_AVRO)
            elif not isinstance(obj, dict):
                raise ValueError("If using the custom schema, the record data should be dict type.")
            self._writer(buffer, self._filling, obj)
        except RecursionError:
            raise too_deep(self._definition["name"]) from None
        except UnicodeEncodeError as error:
            raise ValueError(f"The text of field '{_not_utf8(obj, '')}' is no UTF-8: {error}") from None
        except ValueError as error:
            if len(text := str(error)) <= _LONGEST_TEXT:
                raise
            # Such as one that names each type of a large union; the field stands at its end.
            raise ValueError(f"{text[:_LONGEST_TEXT]} ... {text[-_END_OF_TEXT:]}") from None
        return buffer.getvalue()

    def decode(self, data: bytes) -> Any:
        plain = self._reader(io.BytesIO(data), self._parsed, None)
        return plain if self._codec is None else self._codec.read(plain, AVRO)

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        written = self._parsed
        if writer is not None:
            self._check_type_of(writer)
            written = parsed_writer(writer)
        reader = reader_of(written)
        # The broker does not compare the name of the whole record, so neither does reading.
        # Values of the same definition take no resolution.
        is_own = written == self._parsed
        read, shares = None, False
        if not is_own:
            read = _parsed(_also_called(self._definition, written))
            shares = _put_values_for_defaults(read)
            for definition in (written, read):
                _spell_out(definition, named_types(definition), frozenset())
        codec = self._codec

        def decode(data: bytes) -> Any:
            stream = io.BytesIO(data)
            plain = reader(stream, written, read)
            if stream.tell() != len(data):
                raise ValueError(f"{len(data) - stream.tell()} bytes follow the value")
            if codec is not None:
                return codec.read(plain, AVRO)
            return _with_own_containers(plain) if shares else plain

        return decode


def parsed_writer(writer: TopicSchema) -> Any:
    """Return the definition that values were written with, for fastavro. Raises ValueError."""
    from fastavro import parse_schema  # noqa: PLC0415

    return parse_schema(json.loads(writer.text))


def parsed_filling(definition: Any) -> Any:
    """Return a definition for writing, with values for defaults.

    Dicts may leave out what has one. Raises ValueError.
    """
    parsed = _parsed(definition)
    _put_values_for_defaults(parsed)
    return parsed


def _not_utf8(plain: Any, path: str) -> str:
    """The first field whose text cannot be written; "" if there is none."""
    if isinstance(plain, str):
        try:
            plain.encode()
        except UnicodeEncodeError:
            return path
        return ""
    if isinstance(plain, dict):
        parts = [(value, f"{path}.{name}" if path else str(name)) for name, value in plain.items()]
    elif isinstance(plain, list | tuple):
        parts = [(value, f"{path}[{place}]") for place, value in enumerate(plain)]
    else:
        parts = []
    return next(filter(None, (_not_utf8(*part) for part in parts)), "")


def _also_called(definition: Any, written: Any) -> Any:
    name = written.get("name") if isinstance(written, dict) else None
    if name is None or name == definition.get("name"):
        return definition
    return {**definition, "aliases": [*definition.get("aliases", ()), name]}


def _parsed(definition: Any) -> Any:
    from fastavro import parse_schema  # noqa: PLC0415
    from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415

    is_record = isinstance(definition, dict) and definition.get("type") == "record"
    if not (is_record and isinstance(definition.get("fields"), list)):
        remedy = ": json.loads makes it one" if isinstance(definition, str | bytes) else ""
        raise ValueError(
            f"An Avro definition of values is a dict of the type record, not {definition!r:.200}{remedy}"
        )
    try:
        if (twice := _field_twice(definition)) is not None:
            raise ValueError(f"a record has two fields {twice!r}: rename one")
        return parse_schema(definition)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"The definition is no valid Avro: {type(error).__name__}: {error}") from error
    except RecursionError:
        raise ValueError("The definition is nested too deep") from None


def _put_values_for_defaults(parsed: Any) -> bool:
    """Replace a parsed definition's defaults, which are JSON's, by values as they are read.

    fastavro takes the default of a field as it stands, with bytes as text and dates as numbers. Returns
    whether any is a list or dict, which all values would share.
    """
    named = named_types(parsed)
    fields = [field for kind in named.values() for field in kind.get("fields", ()) if "default" in field]
    values = [_read_default(field["default"], field["type"], named) for field in fields]
    for field, value in zip(fields, values, strict=True):
        field["default"] = value
    return any(isinstance(value, list | dict) for value in values)


def _read_default(default: Any, kind: Any, named: dict[str, Any]) -> Any:
    from fastavro.read import LOGICAL_READERS  # noqa: PLC0415 - only if it is installed

    kind = named.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(kind, list):
        # It is of the first type; the official client gives one of the second, too, where that is null.
        kinds = [each for each in kind if each != "null"]
        return None if default is None else _read_default(default, kinds[0], named)
    name = kind["type"] if isinstance(kind, dict) else kind
    if not isinstance(name, str):
        return _read_default(default, name, named)
    if name in ("bytes", "fixed") and isinstance(default, str):
        default = default.encode("latin-1")
    elif name == "array" and isinstance(default, list):
        default = [_read_default(each, kind["items"], named) for each in default]
    elif name == "map" and isinstance(default, dict):
        default = {key: _read_default(each, kind["values"], named) for key, each in default.items()}
    elif name in ("record", "error") and isinstance(default, dict):
        given = {field["name"]: default.get(field["name"], field.get("default")) for field in kind["fields"]}
        default = {
            field["name"]: _read_default(given[field["name"]], field["type"], named)
            for field in kind["fields"]
        }
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    if (read := LOGICAL_READERS.get(f"{name}-{logical}")) is not None:
        # Defaults of unions may be of no type of theirs: nobody compares them.
        with contextlib.suppress(ValueError, TypeError, ArithmeticError):
            return read(default, kind, kind)
    return default


def _spell_out(kind: Any, named: dict[str, Any], around: frozenset[str]) -> Any:
    """Put definitions in the places of their names, and return that of `kind`.

    Names of the records `around` stay. In unions that are read as a type, or the other way round, fastavro
    finds no names.
    """
    if isinstance(kind, str):
        return kind if kind in around else named.get(kind, kind)
    if isinstance(kind, list):
        return [_spell_out(each, named, around) for each in kind]
    if isinstance(kind, dict):
        if "fields" in kind:
            around |= {kind["name"]}
        for part in (kind, *kind.get("fields", ())):
            for key in ("type", "items", "values"):
                if key in part:
                    part[key] = _spell_out(part[key], named, around)
    return kind


def _with_own_containers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_own_containers(each) for key, each in value.items()}
    return [_with_own_containers(each) for each in value] if isinstance(value, list) else value


def _field_twice(definition: Any) -> str | None:
    """The first name that two fields of a record share."""
    if isinstance(definition, list):
        return next((name for each in definition if (name := _field_twice(each)) is not None), None)
    if not isinstance(definition, dict):
        return None
    fields = definition.get("fields")
    seen: set[str] = set()
    for field in fields if isinstance(fields, list) else ():
        name = field.get("name") if isinstance(field, dict) else None
        if isinstance(name, str) and name in seen:
            return name
        seen.add(str(name))
    return _field_twice([fields, *(definition.get(part) for part in ("type", "items", "values"))])
