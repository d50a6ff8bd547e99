"""Reads and writes Avro that may be nested without end, or has items without bytes.

Only values of definitions that hold themselves can be nested so. fastavro goes into each level until the
stack is full, which ends the process: some thousand bytes of a message are enough. Of items without bytes, as
nulls, six bytes are enough for billions. So levels and such items are counted first.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

MOST_LEVELS = 1000
"""Records, arrays and maps within each other that any thread's stack has room for."""
MOST_EMPTY_ITEMS = 1_000_000
"""Items that take no bytes, in all arrays of a payload."""
_NUMBER_BITS = 70
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}

Reader = Callable[[io.BytesIO, Any, Any], Any]
"""reader(stream, written, wanted) as fastavro's schemaless_reader.

Raises ValueError for too many levels or items.
"""
Writer = Callable[[io.BytesIO, Any, Any], None]


def reader_of(written: Any) -> Reader:
    """Return what reads values that were written with a definition, which fastavro has parsed."""
    from fastavro import schemaless_reader  # noqa: PLC0415 - only if it is installed

    named = named_types(written)
    may_have_many = any(_takes_no_bytes(items, named, frozenset()) for items in _items_of_arrays(written))
    if not (may_have_many or holds_itself(written)):
        return schemaless_reader
    # Each level takes a byte.
    return partial(_read_counted, schemaless_reader, named, 0 if may_have_many else MOST_LEVELS)


def _read_counted(
    read: Reader,
    named: dict[str, Any],
    harmless_bytes: int,
    stream: io.BytesIO,
    definition: Any,
    wanted: Any,
) -> Any:
    data = stream.getvalue()
    if len(data) > harmless_bytes:
        _Payload(data, named).check(definition)
    return read(stream, definition, wanted)


def writer_of(definition: Any) -> Writer:
    """Return what writes values of a definition."""
    from fastavro import schemaless_writer  # noqa: PLC0415 - only if it is installed

    if not holds_itself(definition):
        return schemaless_writer
    return partial(_write_counted, schemaless_writer)


def _write_counted(write: Writer, stream: io.BytesIO, definition: Any, value: Any) -> None:
    _check_value(value)
    write(stream, definition, value)


def holds_itself(definition: Any, around: frozenset[str] = frozenset()) -> bool:
    """Whether a record of a definition is named within itself; namespaces do not count.

    `around` are the records that it stands in.
    """
    if isinstance(definition, str):
        return definition.rpartition(".")[2] in around
    if isinstance(definition, list):
        return any(holds_itself(each, around) for each in definition)
    if not isinstance(definition, dict):
        return False
    if isinstance(fields := definition.get("fields"), list):
        inside = around | {str(definition.get("name")).rpartition(".")[2]}
        return any(holds_itself(each.get("type"), inside) for each in fields)
    return any(holds_itself(definition.get(part), around) for part in ("type", "items", "values"))


def named_types(definition: Any) -> dict[str, Any]:
    """Return the named types of a parsed definition by their full names."""
    named: dict[str, Any] = {}
    _gather(definition, named)
    return named


def _gather(definition: Any, named: dict[str, Any]) -> None:
    """Find the definitions that have names."""
    if isinstance(definition, list):
        for each in definition:
            _gather(each, named)
    elif isinstance(definition, dict):
        if "name" in definition and definition.get("type") in ("record", "error", "enum", "fixed"):
            named[definition["name"]] = definition
        for field in definition.get("fields") or ():
            _gather(field["type"], named)
        for part in ("type", "items", "values"):
            _gather(definition.get(part), named)


def _items_of_arrays(definition: Any) -> Iterator[Any]:
    """Yield the types of the items of each array in a definition."""
    if isinstance(definition, list):
        for each in definition:
            yield from _items_of_arrays(each)
    elif isinstance(definition, dict):
        if definition.get("type") == "array":
            yield definition["items"]
        for field in definition.get("fields") or ():
            yield from _items_of_arrays(field["type"])
        for part in ("type", "items", "values"):
            yield from _items_of_arrays(definition.get(part))


def _takes_no_bytes(kind: Any, named: dict[str, Any], around: frozenset[str]) -> bool:
    """Whether values of a type take no bytes; `around` are the records around it."""
    if isinstance(kind, str):
        kind = named.get(kind, kind)
    if not isinstance(kind, dict):
        return bool(kind == "null")
    name = kind["type"]
    if name in ("record", "error"):
        inside = around | {kind["name"]}
        # One that stands in itself, with nothing between, has no values.
        return kind["name"] not in around and all(
            _takes_no_bytes(field["type"], named, inside) for field in kind["fields"]
        )
    return kind["size"] == 0 if name == "fixed" else _takes_no_bytes(name, named, around)


def _too_deep() -> ValueError:
    return ValueError(f"the value has more than {MOST_LEVELS} levels, or holds itself: send it in parts")


def _check_value(value: Any) -> None:
    left: list[tuple[Any, int]] = [(value, 0)]
    while left:
        each, level = left.pop()
        if isinstance(each, dict | list | tuple):
            if level >= MOST_LEVELS:
                raise _too_deep()
            left += [(part, level + 1) for part in (each.values() if isinstance(each, dict) else each)]


class _Items:
    """The items of an array or a map that are left in its block."""

    def __init__(self, kind: Any, *, is_map: bool, are_empty: bool) -> None:
        self.kind = kind
        self.is_map = is_map
        self.are_empty = are_empty
        self.left = 0


class _Payload:
    """Counts the levels of a value, and its items without bytes, item by item.

    It is left to fastavro to find damage.
    """

    def __init__(self, data: bytes, named: dict[str, Any]) -> None:
        self._data = data
        self._named = named
        self._at = 0
        self._left: list[tuple[Any, int]] = []
        self._empty_items = 0

    def check(self, definition: Any) -> None:
        """Raise ValueError for too many levels or items."""
        self._left.append((definition, 0))
        with contextlib.suppress(IndexError):
            while self._left:
                self._step(*self._left.pop())

    def _step(self, kind: Any, level: int) -> None:
        if level > MOST_LEVELS:
            raise _too_deep()
        if isinstance(kind, str):
            kind = self._named.get(kind, kind)
        name = kind.get("type") if isinstance(kind, dict) else kind
        if isinstance(kind, _Items):
            self._next_item(kind, level)
        elif isinstance(kind, list):
            self._left.append((kind[self._number()], level))
        elif not isinstance(name, str):
            self._left.append((name, level))
        elif name in ("record", "error"):
            self._left += [(field["type"], level + 1) for field in reversed(kind["fields"])]
        elif name in ("array", "map"):
            is_map = name == "map"
            item = kind["values" if is_map else "items"]
            are_empty = not is_map and _takes_no_bytes(item, self._named, frozenset())
            self._left.append((_Items(item, is_map=is_map, are_empty=are_empty), level + 1))
        elif name == "fixed":
            self._at += kind["size"]
        elif name in ("bytes", "string"):
            self._skip()
        elif name in ("int", "long", "enum"):
            self._number()
        else:
            self._at += _WIDTHS[name]

    def _next_item(self, items: _Items, level: int) -> None:
        if not items.left:
            items.left = self._number()
            if items.left < 0:
                items.left = -items.left
                self._number()
            if items.are_empty:
                self._pass_empty(items, level)
                return
            bytes_left = len(self._data) - self._at
            if items.left > bytes_left:
                raise ValueError(f"an array or map of {items.left} items in {bytes_left} bytes")
        if items.left:
            items.left -= 1
            self._left += [(items, level), (items.kind, level)]
            if items.is_map:
                self._skip()

    def _pass_empty(self, items: _Items, level: int) -> None:
        """Count a block of items that take no bytes; another one may follow."""
        self._empty_items += items.left
        if self._empty_items > MOST_EMPTY_ITEMS:
            raise ValueError(f"arrays have more than {MOST_EMPTY_ITEMS} items that take no bytes")
        if items.left:
            items.left = 0
            self._left.append((items, level))

    def _number(self) -> int:
        value = shift = 0
        while shift < _NUMBER_BITS:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise IndexError

    def _skip(self) -> None:
        length = self._number()
        if length < 0:
            raise IndexError
        self._at += length
