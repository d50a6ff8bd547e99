"""Objects of Record classes, dataclasses and pydantic models as plain values, and back."""

from __future__ import annotations

from typing import Any, Protocol

from pulsar_ray.client.options.checks import is_class, is_class_of_values
from pulsar_ray.schema.class_fields import ClassCodec
from pulsar_ray.schema.definition import Record
from pulsar_ray.schema.forms import Reading, Writing


class Codec(Protocol):
    """Turns objects of one class into dicts, lists and simple values, and back."""

    def definition(self) -> Any: ...

    def write(self, obj: Any, writing: Writing) -> Any: ...

    def read(self, plain: Any, reading: Reading) -> Any: ...


class RecordCodec:
    """The codec of a Record class."""

    def __init__(self, record_cls: type[Record]) -> None:
        self._record_cls = record_cls
        self._template = record_cls()

    def definition(self) -> Any:
        return self._record_cls.schema()

    def write(self, obj: Any, writing: Writing) -> Any:
        return self._template._write("", obj, writing)

    def read(self, plain: Any, reading: Reading) -> Any:
        if not isinstance(plain, dict):
            name = f"{self._record_cls.__module__}.{self._record_cls.__qualname__}"
            raise TypeError(f"{name}() argument after ** must be a mapping, not {type(plain).__name__}")
        return self._record_cls._of(plain, "", reading)


def too_deep(name: str) -> ValueError:
    """Return the error for a value that Python cannot walk through."""
    return ValueError(f"A value of {name} holds itself, or is nested too deep: send it in parts")


def codec_of(record_cls: Any) -> Codec:
    """Raises TypeError for what is no class of such values."""
    if is_class(record_cls) and issubclass(record_cls, Record):
        return RecordCodec(record_cls)
    if is_class_of_values(record_cls):
        return ClassCodec(record_cls)
    raise TypeError(
        f"A schema needs a Record class, a dataclass or a pydantic model, not {record_cls!r:.100}"
    )
