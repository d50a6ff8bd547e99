"""Definitions of Avro as types: references resolved, and checked to be Avro."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_MAX_DEPTH: Final = 100
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")


@dataclass(eq=False, slots=True)
class AvroField:
    """A field of a record."""

    type: AvroType
    has_default: bool
    aliases: tuple[str, ...]


@dataclass(eq=False, slots=True)
class AvroType:
    """A type of Avro; one that is named twice is one object."""

    kind: str
    name: str = ""
    fields: dict[str, AvroField] = field(default_factory=dict)
    items: AvroType | None = None
    branches: list[AvroType] = field(default_factory=list)
    size: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


def parse_definition(definition: Any) -> AvroType:
    """Return the type of a definition.

    Raises ValueError, which names the place, for what is no Avro. Defaults are not compared with their types,
    as the official client writes some that do not fit.
    """
    return _Parsing().type_of(definition, "", "", 0)


class _Parsing:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type_of(self, definition: Any, namespace: str, path: str, depth: int) -> AvroType:
        if depth > _MAX_DEPTH:
            _refuse(path, f"types are nested deeper than {_MAX_DEPTH}")
        if isinstance(definition, str):
            return self._named_type(definition, namespace, path)
        if isinstance(definition, list):
            return self._union(definition, namespace, path, depth)
        if not isinstance(definition, dict) or "type" not in definition:
            _refuse(path, f"{definition!r:.80} is no type")
        kind = definition["type"]
        match kind:
            case "record" | "error":
                return self._record(definition, namespace, path, depth)
            case "enum" | "fixed":
                return self._enum_or_fixed(definition, namespace, path)
            case "array" | "map":
                part = "items" if kind == "array" else "values"
                if part not in definition:
                    _refuse(path, f"the {kind} has no {part!r}")
                suffix = "[]" if kind == "array" else "{}"
                items = self.type_of(definition[part], namespace, path + suffix, depth + 1)
                return AvroType(kind, items=items)
        return self.type_of(kind, namespace, path, depth + 1)

    def _named_type(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self._named.get(f"{namespace}.{name}" if namespace else name) or self._named.get(name)
        if found is None:
            _refuse(path, f"there is no type {name!r:.80}")
        return found

    def _union(self, branches: list[Any], namespace: str, path: str, depth: int) -> AvroType:
        types = [self.type_of(branch, namespace, path, depth + 1) for branch in branches]
        if any(branch.kind == "union" for branch in types):
            _refuse(path, "a union has a union in it")
        return AvroType("union", branches=types)

    def _record(self, definition: dict[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        record, namespace = self._begin(definition, namespace, path)
        fields = definition.get("fields")
        if not isinstance(fields, list):
            _refuse(path, "the record has no list of fields")
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str) or "type" not in each:
                _refuse(path, f"{each!r:.80} is no field: it needs a name and a type")
            name = each["name"]
            if not _NAME.match(name) or "." in name:
                _refuse(path, f"{name!r:.80} is no name of a field")
            if name in record.fields:
                _refuse(path, f"the field {name!r} is there twice")
            aliases = each.get("aliases", ())
            if not isinstance(aliases, (list, tuple)) or any(not isinstance(one, str) for one in aliases):
                _refuse(path, f"the aliases of {name!r} are no names")
            place = f"{path}.{name}" if path else name
            record.fields[name] = AvroField(
                self.type_of(each["type"], namespace, place, depth + 1), "default" in each, tuple(aliases)
            )
        return record

    def _enum_or_fixed(self, definition: dict[str, Any], namespace: str, path: str) -> AvroType:
        made, _ = self._begin(definition, namespace, path)
        if made.kind == "enum":
            symbols = definition.get("symbols")
            if not isinstance(symbols, list) or any(not isinstance(each, str) for each in symbols):
                _refuse(path, "the enum has no list of symbols")
            if len(set(symbols)) < len(symbols):
                _refuse(path, "the enum has a symbol twice")
            return made
        size = definition.get("size")
        if type(size) is not int or size < 0:
            _refuse(path, "the fixed has no size")
        made.size = size
        return made

    def _begin(self, definition: dict[str, Any], namespace: str, path: str) -> tuple[AvroType, str]:
        name = definition.get("name")
        if not isinstance(name, str) or not _NAME.match(name):
            _refuse(path, f"{name!r:.80} is no name of a type")
        space, _, short = name.rpartition(".")
        own = definition.get("namespace")
        space = space or (own if isinstance(own, str) else namespace)
        full = f"{space}.{short}" if space else short
        if full in self._named:
            _refuse(path, f"the type {full} is defined twice")
        kind = "record" if definition["type"] == "error" else definition["type"]
        made = self._named[full] = AvroType(kind, full)
        return made, space


def _refuse(path: str, reason: str) -> NoReturn:
    raise ValueError(f"at {path}: {reason}" if path else reason)


def without_doc(definition: Any) -> Any:
    """Return a definition without the words for people.

    Defaults are values, in which `doc` may be a name.
    """
    if isinstance(definition, list):
        return [without_doc(part) for part in definition]
    if isinstance(definition, dict):
        return dict(_kept(definition))
    return definition


def _kept(definition: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, part in definition.items():
        if key != "doc":
            yield key, part if key == "default" else without_doc(part)
