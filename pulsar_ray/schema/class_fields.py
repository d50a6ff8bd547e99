"""Dataclasses and pydantic models as records: their type hints become fields.

| hint | Avro |
|---|---|
| int, float, str, bytes, bool | long, double, string, bytes, boolean |
| datetime, date, UUID | timestamp-micros, date, uuid |
| an Enum, list[T], dict[str, T], another such class | enum, array, map, record |
| T or None | a union, null if a writer does not have it |
| Annotated[int, Integer()] | the type of the field in it |

A default of the class is the default of the field in Avro, so that fields can be added and removed.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import types
import typing
import uuid
from collections.abc import Collection, Mapping
from datetime import date, datetime, timedelta, timezone
from enum import Enum
from typing import Any, Final

from pulsar_ray.client.options.checks import is_class, is_class_of_values
from pulsar_ray.schema.definition import Array, Boolean, Bytes, CustomEnum, Double, Field, Long, Map, String
from pulsar_ray.schema.forms import CONSTRUCTED, WRITES_AVRO, Reading, Writing, as_default
from pulsar_ray.schema.named_types import NamedTypes


class _Unsaid(Enum):
    """Stands for a default; members of an Enum stay themselves in another process."""

    NO_DEFAULT = "none: the field has to be given"
    UNKNOWN = "one that may be another each time"


_NO_DEFAULT: Final[Any] = _Unsaid.NO_DEFAULT
_UNKNOWN: Final[Any] = _Unsaid.UNKNOWN
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class _Logical(Field):
    """A value of Python that is stored as a simple one."""

    _kind: Any

    def python_type(self) -> Any:
        return self._kind

    def _take(self, name: str, value: Any, reading: Reading) -> Any:
        if reading.is_decoded and isinstance(value, (int, str)) and not isinstance(value, bool):
            return self._of_stored(value)
        return self.validate_type(name, value)

    def _of_stored(self, stored: Any) -> Any:
        raise NotImplementedError


class _Timestamp(_Logical):
    _kind = datetime

    def type(self) -> str:
        return "long"

    def _definition(self, names: NamedTypes) -> Any:
        return {"type": "long", "logicalType": "timestamp-micros"}

    def _check(self, name: str, value: Any) -> None:
        super()._check(name, value)
        if value.utcoffset() is None:
            raise ValueError(
                f"Value {value!r} of field '{name}' has no time zone: datetime.now(timezone.utc) has"
            )

    def _of_stored(self, stored: Any) -> Any:
        return _EPOCH + timedelta(microseconds=stored)

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        return (value - _EPOCH) // timedelta(microseconds=1)


class _Date(_Logical):
    _kind = date

    def type(self) -> str:
        return "int"

    def _definition(self, names: NamedTypes) -> Any:
        return {"type": "int", "logicalType": "date"}

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, datetime):
            raise TypeError(f"Invalid type '{datetime}' for field '{name}'. Expected: date")
        super()._check(name, value)

    def _of_stored(self, stored: Any) -> Any:
        return _EPOCH.date() + timedelta(days=stored)

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        return (value - _EPOCH.date()).days


class _Uuid(_Logical):
    _kind = uuid.UUID

    def type(self) -> str:
        return "string"

    def _definition(self, names: NamedTypes) -> Any:
        return {"type": "string", "logicalType": "uuid"}

    def _of_stored(self, stored: Any) -> Any:
        return uuid.UUID(stored)

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        return str(value)


_SIMPLE: Final[dict[Any, type[Field]]] = {
    int: Long,
    float: Double,
    str: String,
    bytes: Bytes,
    bool: Boolean,
    datetime: _Timestamp,
    date: _Date,
    uuid.UUID: _Uuid,
}


@dataclasses.dataclass
class _Attribute:
    """A field of a class: how the class calls it, and which type it has."""

    name: str
    keyword: str
    field: Field
    is_optional: bool
    default: Any


class ClassField(Field):
    """A dataclass or pydantic model as the type of a field."""

    def __init__(self, kind: type, known: dict[str, ClassField]) -> None:
        super().__init__(required=True)
        if known.setdefault(kind.__name__, self) is not self:
            raise TypeError(f"Two classes are called {kind.__name__}, and one schema has both: rename one")
        self._kind = kind
        fields = declared_fields(kind)
        hints = hints_of(kind, [name for name, _, _ in fields])
        self.attributes = [
            _attribute(kind, name, keyword, hints[name], default, known) for name, keyword, default in fields
        ]

    def type(self) -> str:
        return self._kind.__name__

    def python_type(self) -> Any:
        return self._kind

    def _definition(self, names: NamedTypes) -> Any:
        if not names.is_new(self.type(), self._kind, self):
            return self.type()
        entries = [_entry(attribute, names) for attribute in self.attributes]
        return {"type": "record", "name": self.type(), "fields": entries}

    def _take(self, name: str, value: Any, reading: Reading) -> Any:
        if not (reading.is_decoded and isinstance(value, dict)):
            return self.validate_type(name, value)
        return self._made(value, name, reading)

    def _made(self, values: Mapping[str, Any], path: str, reading: Reading) -> Any:
        given = {}
        for attribute in self.attributes:
            name = f"{path}.{attribute.name}" if path else attribute.name
            if attribute.name in values:
                value = values[attribute.name]
                is_none = value is None and attribute.is_optional
                given[attribute.keyword] = None if is_none else attribute.field._take(name, value, reading)
            elif attribute.default is _NO_DEFAULT and not attribute.is_optional:
                raise TypeError(f"Field '{name}' of {self.type()} is missing, and has no default")
            elif attribute.default is _NO_DEFAULT:
                given[attribute.keyword] = None
        return self._kind(**given)

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        written: dict[str, Any] = {}
        for attribute in self.attributes:
            path = f"{name}.{attribute.name}" if name else attribute.name
            held = getattr(value, attribute.name)
            if held is None and attribute.is_optional:
                written[attribute.name] = None
            else:
                taken = attribute.field._take(path, held, CONSTRUCTED)
                written[attribute.name] = attribute.field._write(path, taken, writing)
        return written


class ClassCodec:
    """The codec of a dataclass or a pydantic model."""

    def __init__(self, kind: type) -> None:
        self.field = ClassField(kind, {})

    def definition(self) -> Any:
        return self.field.schema()

    def write(self, obj: Any, writing: Writing) -> Any:
        return self.field._write("", obj, writing)

    def read(self, plain: Any, reading: Reading) -> Any:
        if not isinstance(plain, dict):
            raise TypeError(f"A {self.field.type()} is an object in JSON, not {type(plain).__name__}")
        return self.field._take("", plain, reading)


def declared_fields(kind: type) -> list[tuple[str, str, Any]]:
    """Return name, keyword and default of each field.

    The default is `_UNKNOWN` if it may be another one each time.
    """
    if dataclasses.is_dataclass(kind):
        return [
            (field.name, field.name, _default(field.default, field.default_factory, dataclasses.MISSING))
            for field in dataclasses.fields(kind)
            if field.init
        ]
    undefined = sys.modules["pydantic_core"].PydanticUndefined
    return [
        (
            name,
            _keyword(kind, name, field.validation_alias),
            _default(
                field.default,
                undefined if field.default_factory is None else field.default_factory,
                undefined,
            ),
        )
        for name, field in kind.model_fields.items()  # type: ignore[attr-defined]  # a pydantic model
    ]


def _keyword(model: Any, name: str, alias: Any) -> str:
    """The name by which a model takes the value of a field."""
    config = model.model_config
    if alias is None or config.get("validate_by_name") or config.get("populate_by_name"):
        return name
    for choice in (alias, *getattr(alias, "choices", ())):
        if isinstance(choice, str):
            return choice
    raise TypeError(
        f"Field {model.__name__}.{name} is taken out of another value by {alias!r:.80}: set validate_by_name "
        "in the model's config"
    )


def hints_of(kind: type, fields: Collection[str]) -> dict[str, Any]:
    """Return the types of a class's fields.

    Raises TypeError for one that is not known here.
    """
    hints: dict[str, Any] = {}
    try:
        for base in reversed(kind.__mro__):
            # Other hints may be no types, as KW_ONLY, or stand for what only a type checker has.
            own = {name: hint for name, hint in inspect.get_annotations(base).items() if name in fields}
            module = getattr(sys.modules.get(base.__module__), "__dict__", {})
            part = type(base.__name__, (), {"__annotations__": own})
            hints |= typing.get_type_hints(part, {**vars(base)}, module, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"The hints of {kind.__name__} are text, and {error} where its module {kind.__module__!r} runs: "
            "make the schema where the class is defined, or define the class in a module of its own"
        ) from None
    return hints


def has_default(default: Any) -> bool:
    """Whether a field may be left out."""
    return default is not _NO_DEFAULT


def _default(value: Any, factory: Any, unset: Any) -> Any:
    # A class of a program that a Ray task got by value has an `unset` of its own.
    if not isinstance(value, type(unset)):
        return value
    if isinstance(factory, type(unset)):
        return _NO_DEFAULT
    # Other factories may make another value each time: a schema would then be another one each time.
    return factory() if factory in (list, dict) else _UNKNOWN


def _entry(attribute: _Attribute, names: NamedTypes) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": attribute.name}
    default = attribute.default
    if default in (None, _NO_DEFAULT) and attribute.is_optional:
        entry["default"] = None
    elif default is not _NO_DEFAULT and default is not _UNKNOWN:
        path = f"default of {attribute.name}"
        taken = attribute.field._take(path, default, CONSTRUCTED)
        entry["default"] = as_default(attribute.field._write(path, taken, WRITES_AVRO))
    kind = attribute.field._definition(names)
    # The default of a union is of its first type.
    union = ["null", kind] if entry.get("default") is None else [kind, "null"]
    entry["type"] = union if attribute.is_optional else kind
    return entry


def _attribute(
    kind: type, name: str, keyword: str, hint: Any, default: Any, known: dict[str, ClassField]
) -> _Attribute:
    where = f"{kind.__name__}.{name}"
    chosen, hint = _without_annotations(hint)
    is_optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(hint) if one is not type(None)]
        if len(others) > 1 or len(others) == len(typing.get_args(hint)):
            raise TypeError(f"Field {where} may be of several types: give it one, with or without None")
        is_optional = True
        inner, hint = _without_annotations(others[0])
        chosen = chosen or inner
    field = _field_of(hint, where, known) if chosen is None else copy.copy(chosen)
    field._required = True
    return _Attribute(name, keyword, field, is_optional, default)


def _without_annotations(hint: Any) -> tuple[Field | None, Any]:
    if typing.get_origin(hint) is not typing.Annotated:
        return None, hint
    kind, *extras = typing.get_args(hint)
    return next((extra for extra in extras if isinstance(extra, Field)), None), kind


def _field_of(hint: Any, where: str, known: dict[str, ClassField]) -> Field:
    chosen, hint = _without_annotations(hint)
    if chosen is not None:
        return chosen
    if hint in _SIMPLE:
        return _SIMPLE[hint](required=True)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return Array(_field_of(arguments[0], f"{where}[]", known), required=True)
    if origin is dict and arguments[0] is str:
        return Map(_field_of(arguments[1], f"{where}[]", known), required=True)
    if is_class(hint) and issubclass(hint, Enum):
        return CustomEnum(hint, required=True)
    if is_class_of_values(hint):
        field = known.get(hint.__name__)
        return field if field is not None and field.python_type() is hint else ClassField(hint, known)
    raise TypeError(
        f"Field {where} is of {hint!r:.100}, which has no type in Avro: use int, float, str, bytes, bool, "
        "datetime, date, "
        "UUID, an Enum, list[T], dict[str, T], a dataclass or a pydantic model"
    )
