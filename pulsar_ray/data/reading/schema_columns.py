"""Registered definitions as Arrow types, and columns of one version as those of another.

The rules are Avro's: fields go by name, those that the writer lacks have the reader's default, and numbers
grow. Work is done by column, in no case by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.data.reading.avro_values import LOGICAL, MAX_DIGITS, PRIMITIVES
from pulsar_ray.format.arrow_types import with_children, with_entries

_STORED = {**PRIMITIVES, "null": pa.null(), "enum": pa.utf8(), "fixed": pa.binary()}
_GROWS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_MAX_DEPTH = 64
_NOTHING: Any = object()


@dataclass(frozen=True)
class Node:
    """A type of a definition. One of kind "none" has no column, for a `reason`."""

    kind: str
    logical: str | None = None
    nullable: bool = False
    fields: tuple[NodeField, ...] = ()
    items: Node | None = None
    """Of an array, or the values of a map."""
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    precision: int = 0
    scale: int = 0
    reason: str = ""

    def arrow_type(self, path: str = "") -> pa.DataType:
        """The type of its columns. Raises ValueError, which names the field, where there is none."""
        if self.kind == "none":
            raise ValueError(f"{path or 'the value'}: {self.reason}")
        if self.kind == "record":
            return pa.struct(
                [(each.name, each.node.arrow_type(_in(path, each.name))) for each in self.fields]
            )
        if self.items is not None:
            items = self.items.arrow_type(f"{path}[]")
            return pa.list_(items) if self.kind == "array" else pa.map_(pa.utf8(), items)
        if self.kind == "null":
            # Spark and parquet have no columns of nothing.
            return pa.utf8()
        return LOGICAL.get((self.kind, self.logical or ""), self.stored)

    @property
    def stored(self) -> pa.DataType:
        """The type under the logical one."""
        is_decimal = self.logical == "decimal"
        return pa.decimal128(self.precision, self.scale) if is_decimal else _STORED[self.kind]


@dataclass(frozen=True)
class NodeField:
    """A field of a record."""

    name: str
    node: Node
    default: Any = field(default=_NOTHING, compare=False)
    aliases: tuple[str, ...] = ()


def parse_definition(text: str) -> Node:
    """Parse the text of an Avro definition. Raises ValueError for one that is none."""
    try:
        return _Parsing().node(json.loads(text), "", 0)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its text is no definition: {type(error).__name__}: {error}") from None


class _Parsing:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def node(self, schema: Any, namespace: str, depth: int) -> Node:  # noqa: PLR0911 - one for each kind
        if depth > _MAX_DEPTH:
            return Node("none", reason=f"types are nested deeper than {_MAX_DEPTH}")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            return Node(schema) if schema in _STORED else self._known(schema, namespace)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.node(kind, namespace, depth + 1)
        if kind in ("array", "map"):
            items = self.node(schema["items" if kind == "array" else "values"], namespace, depth + 1)
            return Node(kind, items=items)
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(kind, schema, namespace, depth)
        return self._logical(self.node(kind, namespace, depth + 1), schema)

    def _union(self, schema: list[Any], namespace: str, depth: int) -> Node:
        others = [self.node(each, namespace, depth + 1) for each in schema if each != "null"]
        if not others:
            if not schema:
                raise ValueError("its text is no definition: a union of nothing")
            return Node("null", nullable=True)
        if len(others) > 1:
            return Node("none", reason=f"a union of {len(schema)} types has no one type of a column")
        return replace(others[0], nullable=len(schema) > 1)

    def _known(self, name: str, namespace: str) -> Node:
        full = name if name in self._named else _full_name(name, namespace)[0]
        if full not in self._named:
            raise ValueError(f"its text is no definition: there is no type {name!r:.80}")
        return self._named[full]

    def _define(self, kind: str, schema: Any, namespace: str, depth: int) -> Node:
        name, namespace = _full_name(schema["name"], schema.get("namespace") or namespace)
        self._named[name] = Node("none", reason=f"{name} holds itself, and no column does")
        if kind == "enum":
            found = Node("enum", symbols=tuple(schema["symbols"]), default_symbol=schema.get("default"))
        elif kind == "fixed":
            found = self._logical(Node("fixed"), schema)
        elif not schema["fields"]:
            found = Node("none", reason=f"{name} has no fields, and a column of nothing cannot be")
        else:
            fields = tuple(
                NodeField(
                    each["name"],
                    self.node(each["type"], namespace, depth + 1),
                    each.get("default", _NOTHING),
                    tuple(each.get("aliases", ())),
                )
                for each in schema["fields"]
            )
            found = Node("record", fields=fields)
        self._named[name] = found
        return found

    @staticmethod
    def _logical(node: Node, schema: Any) -> Node:
        logical = schema.get("logicalType")
        if logical == "decimal" and node.kind in ("bytes", "fixed"):
            precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
            if not 0 < precision <= MAX_DIGITS:
                return Node("none", reason=f"a decimal of {precision} digits; columns have {MAX_DIGITS}")
            return replace(node, logical="decimal", precision=precision, scale=scale)
        return replace(node, logical=logical) if (node.kind, logical) in LOGICAL else node


def _full_name(name: str, namespace: str) -> tuple[str, str]:
    """The full name of a type, and the namespace that it is in."""
    if "." in name:
        return name, name.rpartition(".")[0]
    return (f"{namespace}.{name}" if namespace else name), namespace


def _in(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class Resolution(NamedTuple):
    """How columns that a version wrote become columns of another one."""

    written: pa.DataType
    """The parts of payloads that are wanted, without logical types but decimals."""
    convert: Callable[[pa.Array], pa.Array]
    """Raises ValueError, which names the field, for values that do not fit."""


def resolve(writer: Node, reader: Node, *, checks_symbols: bool = True, path: str = "") -> Resolution:
    """Return how to read what one version wrote as another one.

    Raises ValueError, which names the field, where that cannot be. `checks_symbols`: enums are written by
    their symbols.
    """
    return _Resolving(checks_symbols).of(writer, reader, path)


class _Resolving:
    def __init__(self, checks_symbols: bool) -> None:
        self._checks_symbols = checks_symbols

    def of(self, writer: Node, reader: Node, path: str) -> Resolution:
        for node in (writer, reader):
            if node.kind == "none":
                raise ValueError(f"{path or 'the value'}: {node.reason}")
        if reader.kind == "record" and writer.kind == "record":
            return self._record(writer, reader, path)
        if reader.items is not None and writer.items is not None and reader.kind == writer.kind:
            return self._items(writer, reader, path)
        return self._plain(writer, reader, path)

    def _record(self, writer: Node, reader: Node, path: str) -> Resolution:
        written = {each.name: each for each in writer.fields}
        parts: list[tuple[NodeField, str, Resolution | None]] = []
        for each in reader.fields:
            name = next((name for name in (each.name, *each.aliases) if name in written), None)
            if name is not None:
                found = self.of(written[name].node, each.node, _in(path, each.name))
                parts.append((each, name, found))
            else:
                parts.append((each, "", None))
        target = reader.arrow_type(path)
        made = [
            _part(each, found, target.field(place).type, _in(path, each.name))
            for place, (each, _, found) in enumerate(parts)
        ]
        read = {name: found.written for _, name, found in parts if found is not None}
        # Without any field that is wanted a payload is read all the same, to see whether it fits.
        names = list(read) or [writer.fields[0].name]
        types = [read.get(name) or _written_type(writer.fields[0].node) for name in names]
        places = [names.index(name) if found is not None else -1 for _, name, found in parts]

        def convert(array: pa.StructArray) -> pa.Array:
            children = array.flatten()
            arrays = [
                make(None if place < 0 else children[place], len(array), array.null_count)
                for make, place in zip(made, places, strict=True)
            ]
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(arrays, fields=list(target), mask=mask)

        return Resolution(pa.struct(list(zip(names, types, strict=True))), convert)

    def _items(self, writer: Node, reader: Node, path: str) -> Resolution:
        assert writer.items is not None
        assert reader.items is not None
        inner, nullable = self.of(writer.items, reader.items, f"{path}[]"), reader.items.nullable
        kind = reader.arrow_type(path)

        def items(array: pa.Array) -> pa.Array:
            found = inner.convert(array)
            if found.null_count and not nullable:
                raise ValueError(f"{path}[] is null")
            return found

        def convert_list(array: pa.ListArray) -> pa.Array:
            return with_children(array, kind, items(array.values), 2)

        def convert_map(array: pa.MapArray) -> pa.Array:
            return with_entries(array, kind, array.keys, items(array.items))

        if reader.kind == "array":
            return Resolution(pa.list_(inner.written), convert_list)
        return Resolution(pa.map_(pa.utf8(), inner.written), convert_map)

    def _plain(self, writer: Node, reader: Node, path: str) -> Resolution:
        is_same = writer.kind == reader.kind or {writer.kind, reader.kind} == {"bytes", "fixed"}
        if writer.kind == "null":
            return Resolution(pa.null(), lambda array: pa.nulls(len(array), reader.arrow_type(path)))
        if not is_same and reader.kind not in _GROWS.get(writer.kind, ()):
            raise ValueError(f"{path or 'the value'} was written as {writer.kind}, and is now {reader.kind}")
        if (writer.logical == "decimal") != (reader.logical == "decimal"):
            raise ValueError(f"{path or 'the value'} is a decimal in one of both versions only")
        kind = reader.arrow_type(path)
        through = pa.timestamp("ms", "UTC") if reader.logical == "timestamp-millis" else kind
        checked = reader if self._checks_symbols and reader.kind == "enum" else None

        def convert(array: pa.Array) -> pa.Array:
            if checked is not None:
                array = _with_symbols(array, checked, path)
            if array.type == kind:
                return array
            if pa.types.is_floating(kind):
                return array.cast(kind, safe=False)
            return array.cast(through).cast(kind)

        return Resolution(writer.stored, convert)


def _written_type(node: Node) -> pa.DataType:
    try:
        return resolve(node, node).written
    except ValueError:
        return pa.null()


def _part(
    part: NodeField, found: Resolution | None, kind: pa.DataType, path: str
) -> Callable[[pa.Array | None, int, int], pa.Array]:
    """Return a function that makes a field's column.

    It is given the written one, the number of rows, and how many of these are null.
    """
    has_default = part.default is not _NOTHING
    default = pa.scalar(None, kind)
    if has_default and part.default is not None:
        default = _scalar(part.node, part.default, kind, path)
    if found is None:
        if not has_default and not part.node.nullable:
            raise ValueError(f"{path} is new, and has no default")
        return lambda array, rows, nulls: pa.repeat(default, rows)
    is_required = not part.node.nullable and part.node.kind != "null"

    def make(array: pa.Array | None, rows: int, nulls: int) -> pa.Array:
        column = found.convert(array)
        if is_required and column.null_count > nulls:
            if not has_default:
                raise ValueError(f"{path} is missing, or null")
            return pc.coalesce(column, default)
        return column

    return make


def _scalar(node: Node, default: Any, kind: pa.DataType, path: str) -> pa.Scalar:
    try:
        array = pa.array([_plain_default(node, default)], _written_type(node))
        return resolve(node, node, checks_symbols=False).convert(array)[0]
    except (pa.ArrowException, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise ValueError(f"{path} has the default {default!r:.80}, which is none of type {kind}") from None


def _plain_default(node: Node, value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    """A default as pyarrow takes it: the registry has bytes as text of Latin-1."""
    if value is None:
        return None
    if node.kind in ("bytes", "fixed"):
        data = value.encode("latin-1")
        if node.logical != "decimal":
            return data
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-node.scale)
    if node.items is not None:
        items = node.items
        if node.kind == "array":
            return [_plain_default(items, each) for each in value]
        return [(key, _plain_default(items, each)) for key, each in value.items()]
    if node.kind == "record":
        given: Mapping[str, Any] = value
        return {
            each.name: _plain_default(
                each.node, given.get(each.name, None if each.default is _NOTHING else each.default)
            )
            for each in node.fields
        }
    return value


def _with_symbols(array: pa.Array, reader: Node, path: str) -> pa.Array:
    is_known = pc.or_(pc.is_in(array, pa.array(reader.symbols, pa.utf8())), array.is_null())
    if pc.all(is_known).as_py() is not False:
        return array
    if reader.default_symbol is None:
        unknown = array.filter(pc.invert(is_known))[0].as_py()
        raise ValueError(
            f"{path or 'the value'} is {unknown!r:.80}, which is no symbol of the newest version"
        )
    return pc.if_else(is_known, array, pa.scalar(reader.default_symbol))
