"""JSON of dataclasses and models, where every value is plainly what its hint says.

`QuickText` and `QuickReader` look at types once and hold no words for errors: what they do not
take has another type, or is one of many that are rare. `ClassCodec` takes it then, or says what is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from json.scanner import make_scanner
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from pulsar_ray.schema.class_fields import ClassCodec, ClassField
from pulsar_ray.schema.definition import (
    MAX_FLOAT,
    Array,
    Boolean,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    String,
)
from pulsar_ray.schema.forms import Reading, Writing

_Write = Callable[[Any], str]
_BOOLEANS: Final = {True: "true", False: "false"}


class NotPlain(Exception):
    """A value is to be taken by the class's codec."""


# ---- written


class QuickText:
    """Writes objects of a class as the text that `json.dumps(..., indent=1)` makes."""

    def __init__(self, codec: ClassCodec, writing: Writing) -> None:
        self._made_of = codec, writing
        self._write = _object_writer(codec.field, writing, 1, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return QuickText, self._made_of

    def text(self, obj: Any) -> str:
        """Return the text of an object. Raises NotPlain."""
        try:
            return self._write(obj)
        except Exception:  # noqa: BLE001 - whatever it is, the codec says it in its words
            raise NotPlain from None


def _object_writer(
    field: ClassField, writing: Writing, depth: int, made: dict[tuple[ClassField, int], _Write]
) -> _Write:
    """Return a function that writes objects at this depth.

    Classes may hold themselves: the writers of fields are made when the first object comes.
    """
    if (field, depth) in made:
        return made[field, depth]
    kind, attributes = field.python_type(), field.attributes
    names = [attribute.name for attribute in attributes]
    gap = "\n" + " " * depth
    lines = [f"{encode_basestring_ascii(name)}: ".replace("%", "%%") + "%s" for name in names]
    template = "{" + gap + ("," + gap).join(lines) + gap[:-1] + "}" if names else "{}"
    values_of = _tuples(attrgetter, names)
    writers: list[_Write] = []

    def write(obj: Any) -> str:
        if not isinstance(obj, kind):
            raise NotPlain
        if not writers:
            writers.extend(
                _optional(_writer(attribute.field, writing, depth, made), attribute.is_optional)
                for attribute in attributes
            )
        return template % tuple([write(value) for write, value in zip(writers, values_of(obj), strict=True)])

    made[field, depth] = write
    return write


def _optional(write: _Write, is_optional: bool) -> _Write:
    return (lambda value: "null" if value is None else write(value)) if is_optional else write


def _writer(field: Any, writing: Writing, depth: int, made: dict[tuple[ClassField, int], _Write]) -> _Write:
    if isinstance(field, ClassField):
        return _object_writer(field, writing, depth + 1, made)
    simple = _WRITERS.get(type(field))
    if simple is not None:
        return simple
    if type(field) in (Array, Map):
        return _container_writer(field, writing, depth, made)

    kind = field.python_type()

    def write(value: Any) -> str:
        # A field converts some values (text to bytes), items of a list are not: the codec knows which.
        if not isinstance(value, kind):
            raise NotPlain
        plain = field._write("", field.validate_type("", value), writing)
        return encode_basestring_ascii(plain) if type(plain) is str else _whole(plain)

    return write


def _container_writer(
    field: Array | Map, writing: Writing, depth: int, made: dict[tuple[ClassField, int], _Write]
) -> _Write:
    is_list = isinstance(field, Array)
    item = _writer(field._item, writing, depth + 1, made)
    container: type[Any] = list if is_list else dict
    begin, end = "[]" if is_list else "{}"
    gap = "\n" + " " * (depth + 1)
    begin, between, last = begin + gap, "," + gap, gap[:-1] + end
    empty = begin[0] + end

    def write(value: Any) -> str:
        if type(value) is not container:
            raise NotPlain
        if not value:
            return empty
        if is_list:
            return begin + between.join(map(item, value)) + last
        pairs = [f"{encode_basestring_ascii(key)}: {item(each)}" for key, each in value.items()]
        return begin + between.join(pairs) + last

    return write


def _whole(value: Any) -> str:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise NotPlain
    return int.__repr__(value)


def _int(value: Any) -> str:
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:
        raise NotPlain
    return int.__repr__(value)


def _double(value: Any) -> str:
    if type(value) is not float or not math.isfinite(value):
        raise NotPlain
    return float.__repr__(value)


def _float(value: Any) -> str:
    if type(value) is not float or not -MAX_FLOAT < value < MAX_FLOAT:
        raise NotPlain
    return float.__repr__(value)


def _boolean(value: Any) -> str:
    if type(value) is not bool:
        raise NotPlain
    return _BOOLEANS[value]


_WRITERS: Final[dict[type[Field], _Write]] = {
    # It raises TypeError for what is no text.
    String: encode_basestring_ascii,
    Long: _whole,
    Integer: _int,
    Double: _double,
    Float: _float,
    Boolean: _boolean,
}


# ---- read


class QuickReader:
    """Reads objects of a class whose fields need no conversion from JSON."""

    def __init__(self, codec: ClassCodec, reading: Reading) -> None:
        self._codec = codec
        self._reading = reading
        self._kind: Any = codec.field.python_type()
        attributes = codec.field.attributes
        names = [attribute.name for attribute in attributes]
        self._keywords = [attribute.keyword for attribute in attributes]
        self._is_named_so = names == self._keywords
        self._count = len(names)
        checks = [_check(place, each.field, each.is_optional) for place, each in enumerate(attributes)]
        self._checks = [check for check in checks if check is not None]
        self._values_of = None if None in checks else _tuples(itemgetter, names)
        self._numbers = [(c.place, c.least, c.end) for c in self._checks if c.items is None and c.end]
        self._containers = [(c.place, c.items, c.least, c.end) for c in self._checks if c.items is not None]
        self._known: set[tuple[type, ...]] = set()
        """Types of values that occurred together, and are those of the fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        return QuickReader, (self._codec, self._reading)

    def read(self, data: bytes) -> Any:
        """Return the object of a JSON text. Raises what the codec raises."""
        plain = _parsed(data)
        if self._values_of is not None and type(plain) is dict:
            try:
                values = self._values_of(plain)
                is_taken = self._takes(values)
            except KeyError:
                is_taken = False
            if is_taken:
                if self._is_named_so and len(plain) == self._count:
                    return self._kind(**plain)
                return self._kind(**dict(zip(self._keywords, values, strict=True)))
        return self._codec.read(plain, self._reading)

    def _takes(self, values: tuple[Any, ...]) -> bool:
        types = tuple(map(type, values))
        if types not in self._known and not self._knows(types):
            return False
        for place, least, end in self._numbers:
            value = values[place]
            if value is not None and not least <= value < end:
                return False
        for place, only, least, end in self._containers:
            items = values[place]
            if not items:
                continue
            if type(items) is dict:
                items = items.values()
            if not only.issuperset(map(type, items)):
                return False
            if end and not (least <= min(items) and max(items) < end):
                return False
        return True

    def _knows(self, types: tuple[type, ...]) -> bool:
        is_known = all(kind in check.types for kind, check in zip(types, self._checks, strict=True))
        if is_known and len(self._known) < _MOST_KNOWN:
            self._known.add(types)
        return is_known


_MOST_KNOWN: Final = 64


class _Check(NamedTuple):
    """Says which types and numbers a field takes, and its items."""

    place: int
    types: frozenset[type]
    items: frozenset[type] | None
    least: int
    end: int
    """0 where any number will do."""


def _check(place: int, field: Any, is_optional: bool) -> _Check | None:
    """Return what a field takes, None where that cannot be seen from types."""
    none = {type(None)} if is_optional else set()
    if (simple := _READ_AS.get(type(field))) is not None:
        kind, end = simple
        return _Check(place, frozenset({kind, *none}), None, -end, end)
    container = {Array: list, Map: dict}.get(type(field))
    if container is None or (simple := _READ_AS.get(type(field._item))) is None:
        return None
    kind, end = simple
    return _Check(place, frozenset({container, *none}), frozenset({kind}), -end, end)


_READ_AS: Final[dict[type[Field], tuple[type, int]]] = {
    String: (str, 0),
    Boolean: (bool, 0),
    Double: (float, 0),
    Long: (int, 1 << 63),
    Integer: (int, 1 << 31),
}
_DECODER: Any = json.JSONDecoder()
_scan_once: Final = make_scanner(_DECODER)


def _parsed(data: bytes) -> Any:
    """Return what `json.loads` returns, without its look at other encodings and at spaces around."""
    if data[:1] == b"{" and data[1:2] != b"\0":
        try:
            text = str(data, "utf-8", "surrogatepass")
            plain, end = _scan_once(text, 0)
        except (ValueError, StopIteration):
            return json.loads(data)
        if end == len(text):
            return plain
    return json.loads(data)


def _tuples(getter: Any, names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gets all of these names as a tuple."""
    if not names:
        return lambda _: ()
    # Of one name alone, a getter gives the value itself.
    get: Callable[[Any], tuple[Any, ...]] = getter(*names)
    return get if len(names) > 1 else lambda held: (get(held),)
