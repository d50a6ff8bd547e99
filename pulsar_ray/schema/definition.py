"""Records and their fields: declared values that become JSON or Avro.

A record's field may have any name, that of a method too. A record that is a field of another one is therefore
called by names with an underscore alone, and other fields likewise.
"""

from __future__ import annotations

import base64
import binascii
import copy
import math
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final

from pulsar_ray.client.options.checks import is_class
from pulsar_ray.schema.forms import CONSTRUCTED, WRITES_AVRO, Reading, Writing, as_default
from pulsar_ray.schema.named_types import NamedTypes

MAX_FLOAT: Final = 3.4028235677973366e38
_UNSET: Final[Any] = object()
_FLAGS: Final = ("_required_default", "_default", "_required")


def is_unicode(s: object) -> bool:
    return isinstance(s, str)


def _string_representation(x: object) -> str:
    return str(x) if isinstance(x, str) else getattr(x, "__name__", str(x))


def _wrong_type(name: str, value: object, expected: object) -> TypeError:
    return TypeError(f"Invalid type '{type(value)}' for field '{name}'. Expected: {expected}")


def _with_names(described: Any, defined_names: set[str]) -> Any:
    names = NamedTypes(defined_names)
    definition = described._definition(names)
    defined_names.update(names.known)
    return definition


class Field:
    """Base of all types a record's field can have."""

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self._required_default = required_default
        self._required = required
        self._default: Any = None
        if default is not None:
            self._default = self.validate_type("default", default)

    def type(self) -> str:
        """The name of the type in Avro."""
        raise NotImplementedError

    def python_type(self) -> Any:
        raise NotImplementedError

    def validate_type(self, name: str, val: Any) -> Any:
        """Return the value as the field keeps it; raise TypeError or ValueError for others."""
        if val is None and not self._required:
            return self.default()
        self._check(name, val)
        return val

    def schema(self) -> Any:
        return self._definition(NamedTypes())

    def schema_info(self, defined_names: set[str]) -> Any:
        """The type in Avro; named types of `defined_names` are given by their names."""
        return _with_names(self, defined_names)

    def default(self) -> Any:
        return self._default

    def required(self) -> bool:
        return self._required

    def required_default(self) -> bool:
        return self._required_default

    def _check(self, name: str, value: Any) -> None:
        if not isinstance(value, self.python_type()):
            raise _wrong_type(name, value, _string_representation(self.python_type()))

    def _definition(self, names: NamedTypes) -> Any:
        return self.type()

    def _type_name(self) -> str:
        return self.type()

    def _fresh(self) -> Any:
        return copy.deepcopy(self.default())

    def _schema_default(self) -> Any:
        return as_default(self._write("default", self.default(), WRITES_AVRO))

    def _take(self, name: str, value: Any, reading: Reading) -> Any:
        return self.validate_type(name, value)

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        return value


class Null(Field):
    """Holds nothing but None."""

    def type(self) -> str:
        return "null"

    def python_type(self) -> Any:
        return type(None)

    def validate_type(self, name: str, val: Any) -> None:
        if val is not None:
            raise TypeError(f"Field {name} is set to be None")


class Boolean(Field):
    """True or False, which it is unless it is set."""

    def type(self) -> str:
        return "boolean"

    def python_type(self) -> Any:
        return bool

    def default(self) -> bool:
        return bool(self._default)


class _WholeNumber(Field):
    _bits: ClassVar[int]

    def python_type(self) -> Any:
        return int

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(name, value, "int")
        end = 1 << (self._bits - 1)
        if not -end <= value < end:
            raise ValueError(f"Value {value} of field '{name}' is not in {-end} to {end - 1} ({self.type()})")


class Integer(_WholeNumber):
    """A whole number of 32 bits."""

    _bits = 32

    def type(self) -> str:
        return "int"


class Long(_WholeNumber):
    """A whole number of 64 bits."""

    _bits = 64

    def type(self) -> str:
        return "long"


class _Real(Field):
    def python_type(self) -> Any:
        return float

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, (float, int)):
            raise _wrong_type(name, value, (float, int))
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"Value {value} of field '{name}' is too large ({self.type()})") from None
        self._check_size(name, number)

    def _check_size(self, name: str, number: float) -> None:
        """Every float is a double."""


class Float(_Real):
    """A number with 32 bits."""

    def type(self) -> str:
        return "float"

    def _check_size(self, name: str, number: float) -> None:
        if math.isfinite(number) and abs(number) >= MAX_FLOAT:
            raise ValueError(f"Value {number} of field '{name}' is too large (float); use Double()")


class Double(_Real):
    """A number with 64 bits."""

    def type(self) -> str:
        return "double"


class Bytes(Field):
    """Bytes, also given as text, which becomes UTF-8."""

    def type(self) -> str:
        return "bytes"

    def python_type(self) -> Any:
        return bytes

    def validate_type(self, name: str, val: Any) -> Any:
        if isinstance(val, str):
            return val.encode()
        if isinstance(val, (bytearray, memoryview)):
            return bytes(val)
        return super().validate_type(name, val)

    def _take(self, name: str, value: Any, reading: Reading) -> Any:
        if not (reading.is_decoded and isinstance(value, str)):
            return self.validate_type(name, value)
        if reading.is_base64:
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"Value {value!r:.80} of field '{name}' is not base64: {error}") from None
        return value.encode("utf-8", "surrogateescape")

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        if value is None or not writing.bytes_as_text:
            return value
        if writing.is_base64:
            return base64.b64encode(value).decode()
        # Bytes that are not UTF-8 become lone surrogates, which no text of UTF-8 has, so all come back.
        return value.decode("utf-8", "surrogateescape")


class String(Field):
    """Text, also given as bytes of UTF-8."""

    def type(self) -> str:
        return "string"

    def python_type(self) -> Any:
        return str

    def validate_type(self, name: str, val: Any) -> Any:
        return super().validate_type(name, val.decode() if isinstance(val, bytes) else val)

    def _check(self, name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise TypeError(f"Invalid type '{type(value)}' for field '{name}'. Expected a string")


_ENUM_VALUES: Final = (str, int, float)


class CustomEnum(Field):
    """A member of an Enum, also given by its name or its whole number."""

    def __init__(
        self,
        enum_type: type[Enum],
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        if not (is_class(enum_type) and issubclass(enum_type, Enum)):
            raise TypeError(f"{enum_type} is not a valid Enum type")
        self.enum_type = enum_type
        # No field is given by another value, and not each can be a key.
        self.values = {each.value: each for each in enum_type if isinstance(each.value, _ENUM_VALUES)}
        super().__init__(default, required, required_default)

    def type(self) -> str:
        return "enum"

    def python_type(self) -> Any:
        return self.enum_type

    def validate_type(self, name: str, val: Any) -> Any:
        if isinstance(val, self.enum_type) or (val is None and not self._required):
            return val
        if isinstance(val, str):
            return self._member(name, val, self.enum_type.__members__)
        if isinstance(val, int):
            return self._member(name, val, self.values)
        raise _wrong_type(name, val, self.enum_type.__name__)

    def _member(self, name: str, value: Any, members: Mapping[Any, Enum]) -> Enum:
        if value not in members:
            known = dict.fromkeys(members).keys()
            raise TypeError(f"Invalid enum value '{value}' for field '{name}'. Expected: {known}")
        return members[value]

    def _definition(self, names: NamedTypes) -> Any:
        name = self.enum_type.__name__
        if not names.is_new(name, self.enum_type, self):
            return name
        return {"type": "enum", "name": name, "symbols": [member.name for member in self.enum_type]}

    def _type_name(self) -> str:
        return self.enum_type.__name__

    def _take(self, name: str, value: Any, reading: Reading) -> Any:
        if reading.is_decoded and value is not None and not isinstance(value, Enum):
            names: Mapping[Any, Enum] = self.enum_type.__members__
            for members in (names, self.values) if reading.names_first else (self.values, names):
                # True is 1 as a key, and no value of such an enum.
                if not isinstance(value, (bool, list, dict)) and value in members:
                    return members[value]
        return self.validate_type(name, value)

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        if value is None:
            return None
        # JSON gives back other values as something else, or has none for them.
        return value.name if writing.enum_names or type(value.value) not in _ENUM_VALUES else value.value


def _template(x: Any) -> Any:
    """The field that stands for what was given as the type of items."""
    if is_class(x) and issubclass(x, Record):
        return x()
    if is_class(x) and issubclass(x, Enum):
        return CustomEnum(x)
    return x


def _check_record_or_field(x: Any) -> None:
    if not isinstance(x, (Record, Field)):
        raise TypeError(f"Argument {_string_representation(x)} is not a Record or a Field")


class _Container(Field):
    """A field that holds items of one type."""

    _item: Any

    def validate_type(self, name: str, val: Any) -> Any:
        return self._take(name, val, CONSTRUCTED)

    def _take(self, name: str, value: Any, reading: Reading) -> Any:
        if value is None and not self._required:
            return None
        self._check(name, value)
        return self._each(name, value, lambda place, item: self._taken_item(name, place, item, reading))

    def _taken_item(self, name: str, place: Any, item: Any, reading: Reading) -> Any:
        template = self._item
        path = f"{name}[{place!r}]"
        is_given = not reading.is_decoded and not isinstance(item, dict)
        try:
            if item is None and not isinstance(template, Null):
                raise _wrong_type(path, item, template._type_name())
            if is_given and isinstance(template, (String, Bytes)):
                # Items are not converted, unlike the values of a field.
                if not isinstance(item, template.python_type()):
                    raise _wrong_type(path, item, template._type_name())
                return item
            return template._take(path, item, reading)
        except TypeError as error:
            if isinstance(template, (_Container, Record)) and isinstance(item, (list, dict)):
                raise
            raise TypeError(
                f"{self._items_are_wrong(name)} {template._type_name()}: item {place!r} is {item!r:.100}"
            ) from error

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        if value is None:
            return None
        return self._each(
            name, value, lambda place, item: self._item._write(f"{name}[{place!r}]", item, writing)
        )

    def _each(self, name: str, value: Any, change: Callable[[Any, Any], Any]) -> Any:
        raise NotImplementedError

    def _items_are_wrong(self, name: str) -> str:
        raise NotImplementedError


class Array(_Container):
    """A list of items of one type."""

    def __init__(
        self, array_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        self.array_type = self._item = _template(array_type)
        _check_record_or_field(self.array_type)
        super().__init__(default, required, required_default)

    def type(self) -> str:
        return "array"

    def python_type(self) -> Any:
        return list

    def _definition(self, names: NamedTypes) -> Any:
        return {"type": "array", "items": self._item._definition(names)}

    def _each(self, name: str, value: Any, change: Callable[[Any, Any], Any]) -> Any:
        return [change(place, item) for place, item in enumerate(value)]

    def _items_are_wrong(self, name: str) -> str:
        return f"Array field {name} items should all be of type"


class Map(_Container):
    """Values of one type by text keys."""

    def __init__(
        self, value_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        self.value_type = self._item = _template(value_type)
        _check_record_or_field(self.value_type)
        super().__init__(default, required, required_default)

    def type(self) -> str:
        return "map"

    def python_type(self) -> Any:
        return dict

    def _check(self, name: str, value: Any) -> None:
        super()._check(name, value)
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"Map keys for field {name}  should all be strings: one is {key!r:.100}")

    def _definition(self, names: NamedTypes) -> Any:
        return {"type": "map", "values": self._item._definition(names)}

    def _each(self, name: str, value: Any, change: Callable[[Any, Any], Any]) -> Any:
        return {key: change(key, item) for key, item in value.items()}

    def _items_are_wrong(self, name: str) -> str:
        return f"Map values for field {name} should all be of type"


_FIELD_OF: Final = {
    int: "Long() or Integer()",
    str: "String()",
    bytes: "Bytes()",
    bool: "Boolean()",
    float: "Double()",
    list: "Array(...)",
    dict: "Map(...)",
}


def _field_of(record: str, name: str, value: Any) -> Any:
    """The field that an attribute of a record declares, None if it is something else."""
    if isinstance(value, (Field, Record)):
        return value
    if not is_class(value):
        if typing.get_origin(value) in _FIELD_OF:
            raise _no_field(name, record, typing.get_origin(value))
        return None
    if issubclass(value, (Record, Enum)):
        return _template(value)
    if issubclass(value, Field):
        raise TypeError(f"Field {name} of {record} is a class: write {value.__name__}(...)")
    if value in _FIELD_OF:
        raise _no_field(name, record, value)
    return None


def _no_field(name: str, record: str, kind: Any) -> TypeError:
    return TypeError(f"Field {name} of {record} is no field: write {_FIELD_OF[kind]}")


class RecordMeta(type):
    """Collects the fields of a record and its bases, in the order of declaration."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> RecordMeta:
        if any(isinstance(base, RecordMeta) for base in bases):
            fields: dict[str, Any] = {}
            for base in reversed(bases):
                fields |= getattr(base, "_fields", {})
            for attribute, value in namespace.items():
                field = _field_of(name, attribute, value)
                if field is not None:
                    fields[attribute] = field
            namespace["_fields"] = fields
        return super().__new__(mcs, name, bases, namespace)


class Record(metaclass=RecordMeta):
    """Base of classes whose attributes are fields, for `JsonSchema` and `AvroSchema`.

    An instance is also a field of another record, with `required`, `default` and `required_default`.
    """

    _fields: ClassVar[dict[str, Any]]
    _avro_namespace: ClassVar[str | None] = None
    _sorted_fields: ClassVar[bool] = False
    _default: Any
    _required: bool
    _required_default: bool

    def __init__(
        self, default: Any = _UNSET, required_default: Any = _UNSET, required: Any = _UNSET, **kwargs: Any
    ) -> None:
        flags = {"default": default, "required_default": required_default, "required": required}
        for name, given in flags.items():
            # A field of such a name is meant before the record's own setting.
            if given is not _UNSET and name in self._fields:
                kwargs[name] = given
                flags[name] = _UNSET
        own = {name: None if given is _UNSET else given for name, given in flags.items()}
        self._fill(kwargs, "", CONSTRUCTED)
        self.__dict__.update(_required_default=bool(own["required_default"]), _required=bool(own["required"]))
        if own["default"] is not None:
            self.__dict__["_default"] = self._take("default", own["default"], CONSTRUCTED)

    @classmethod
    def schema(cls) -> Any:
        """The definition in Avro, as plain values."""
        return cls._definition(NamedTypes())

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Any:
        return _with_names(cls, defined_names)

    @classmethod
    def _type_name(cls) -> str:
        return cls.__name__

    @classmethod
    def _full_name(cls) -> str:
        return f"{cls._avro_namespace}.{cls.__name__}" if cls._avro_namespace else cls.__name__

    @classmethod
    def _definition(cls, names: NamedTypes) -> Any:
        if not names.is_new(cls._full_name(), cls, cls):
            return cls._full_name()
        inner = names.inside(cls._avro_namespace)
        definition: dict[str, Any] = {"type": "record", "name": cls.__name__}
        if cls._avro_namespace is not None:
            definition["namespace"] = cls._avro_namespace
        definition["fields"] = entries = []
        fields = sorted(cls._fields.items()) if cls._sorted_fields else cls._fields.items()
        for name, field in fields:
            entry: dict[str, Any] = {"name": name}
            if field._required_default:
                entry["default"] = field._schema_default()
            kind = field._definition(inner)
            entry["type"] = kind if field._required else ["null", kind]
            entries.append(entry)
        return definition

    def type(self) -> str:
        return self._full_name()

    def python_type(self) -> Any:
        return type(self)

    def validate_type(self, name: str, val: Any) -> Any:
        return self._checked(name, val)

    def default(self) -> Any:
        return self._default

    def required(self) -> bool:
        return self._required

    def required_default(self) -> bool:
        return self._required_default

    def _checked(self, name: str, value: Any) -> Any:
        kind = self.__class__
        if isinstance(value, kind) or (value is None and not self._required):
            return value
        raise TypeError(
            f"Invalid type '{value.__class__}' for sub-record field '{name}'. Expected: {kind.__name__}"
        )

    def _take(self, name: str, value: Any, reading: Reading) -> Any:
        if isinstance(value, dict):
            return self.__class__._of(value, name, reading)
        return self._checked(name, value)

    def _fresh(self) -> Any:
        made = copy.deepcopy(self if self._default is None else self._default)
        made.__dict__.update(_required_default=False, _default=None, _required=False)
        return made

    def _schema_default(self) -> Any:
        if self._default is None:
            return None
        return as_default(self._write("default", self._default, WRITES_AVRO))

    def _write(self, name: str, value: Any, writing: Writing) -> Any:
        if value is None:
            return None
        held = value.__dict__
        written = {}
        for inner, field in self._fields.items():
            item = held.get(inner)
            path = f"{name}.{inner}" if name else inner
            if isinstance(field, _Container):
                # It may have been changed in place, and nothing has looked at its items since.
                item = field._take(path, item, CONSTRUCTED)
            if item is None and field._required and not isinstance(field, Null):
                record = self.__class__.__name__
                raise TypeError(f"Field '{path}' of {record} is required and has no value")
            written[inner] = None if item is None else field._write(path, item, writing)
        return written

    @classmethod
    def _of(cls, values: Mapping[str, Any], path: str, reading: Reading) -> Any:
        """A record with these values; `path` is where it lies in another one."""
        made = cls.__new__(cls)
        made._fill(values, path, reading)
        return made

    def _fill(self, values: Mapping[str, Any], path: str, reading: Reading) -> None:
        fields = self._fields
        if not reading.keeps_unknown_out:
            for name in values:
                if name not in fields:
                    known = ", ".join(fields) or "none"
                    raise TypeError(
                        f"{self.__class__.__name__} has no field {name!r}; its fields are: {known}"
                    )
        held = self.__dict__
        held.update(_required_default=False, _default=None, _required=False)
        for name, field in fields.items():
            if name in values:
                held[name] = field._take(f"{path}.{name}" if path else name, values[name], reading)
            else:
                held[name] = field._fresh()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fields:
            self.__dict__[name] = self._fields[name].validate_type(name, value)
        elif name in _FLAGS:
            self.__dict__[name] = value
        else:
            raise AttributeError(f"Cannot set undeclared field {name} on record")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        mine, others = self.__dict__, other.__dict__
        return self._fields.keys() == other._fields.keys() and all(
            mine.get(name) == others.get(name) for name in self._fields
        )

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __str__(self) -> str:
        return str(self.__dict__)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={self.__dict__.get(name)!r}" for name in self._fields)
        return f"{self.__class__.__name__}({values})"
