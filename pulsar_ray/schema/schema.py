"""Schemas without a library of their own: bytes, text, and JSON of records."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.options.schema import BytesSchema, Schema, SchemaInfo, StringSchema
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import JAVA_PROPERTIES, TopicSchema
from pulsar_ray.schema.class_fields import ClassCodec
from pulsar_ray.schema.codecs import codec_of, too_deep
from pulsar_ray.schema.forms import (
    JAVA_JSON,
    PYTHON_JSON,
    WRITES_JAVA_JSON,
    WRITES_PYTHON_JSON,
    Reading,
)
from pulsar_ray.schema.quick_json import NotPlain, QuickReader, QuickText

__all__ = ["BytesSchema", "JsonSchema", "Schema", "SchemaInfo", "StringSchema", "remove_reserved_key"]


def remove_reserved_key(data: dict[str, Any]) -> dict[str, Any]:
    """Take a record's own settings out of the values of its fields."""
    for key in ("_default", "_required", "_required_default"):
        data.pop(key, None)
    return data


class JsonSchema(Schema):
    """Values of a Record class, a dataclass or a pydantic model, as JSON.

    With `java=True` it writes and reads what Java's clients do: bytes in base64, enums by their names.
    """

    def __init__(self, record_cls: Any, *, java: bool = False) -> None:
        self._codec = codec_of(record_cls)
        self._reading = JAVA_JSON if java else PYTHON_JSON
        self._writing = WRITES_JAVA_JSON if java else WRITES_PYTHON_JSON
        self._is_java = java
        self._quick: QuickText | None = None
        self._readers: dict[Reading, QuickReader] = {}
        if isinstance(self._codec, ClassCodec):
            self._quick = QuickText(self._codec, self._writing)
            self._readers = {form: QuickReader(self._codec, form) for form in (PYTHON_JSON, JAVA_JSON)}
        text = json.dumps(self._codec.definition(), indent=1)
        super().__init__(record_cls, SchemaType.JSON, text, "JSON")

    def registered(self) -> TopicSchema:
        properties = dict(zip(JAVA_PROPERTIES, ("true", "false"), strict=True)) if self._is_java else {}
        return TopicSchema(SchemaType.JSON.name, self._schema_info.schema(), properties)

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        if writer is None:
            return self.decode
        self._check_type_of(writer)
        codec, reading = self._codec, JAVA_JSON if writer.is_java else PYTHON_JSON
        if (reader := self._readers.get(reading)) is not None:
            return reader.read
        return lambda data: codec.read(json.loads(data), reading)

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        plain: Any = None
        try:
            if self._quick is not None:
                with contextlib.suppress(NotPlain):
                    return self._quick.text(obj).encode()
            plain = self._codec.write(obj, self._writing)
        except RecursionError:
            raise too_deep(self._record_cls.__name__) from None
        try:
            return json.dumps(plain, indent=1, allow_nan=False).encode()
        except RecursionError:
            raise too_deep(self._record_cls.__name__) from None
        except ValueError:
            raise ValueError(
                f"JSON has no number for {_not_finite(plain, '')} of {self._record_cls.__name__}: "
                "use AvroSchema"
            ) from None

    def decode(self, data: bytes) -> Any:
        if (reader := self._readers.get(self._reading)) is not None:
            return reader.read(data)
        return self._codec.read(json.loads(data), self._reading)


def _not_finite(plain: Any, path: str) -> str:
    """The first number that JSON lacks, and its field; "" if there is none."""
    if isinstance(plain, float):
        return "" if math.isfinite(plain) else f"{plain} in field '{path}'"
    if isinstance(plain, dict):
        return next(
            filter(None, (_not_finite(v, f"{path}.{k}" if path else k) for k, v in plain.items())), ""
        )
    if isinstance(plain, list):
        return next(filter(None, (_not_finite(v, f"{path}[{i}]") for i, v in enumerate(plain))), "")
    return ""
