"""Schemas of topics and their versions, as the registry has them (ADR 0126)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_ray.model.enums import SchemaType

VERSION_BYTES: Final = 8
"""A message names its version in so many bytes, big-endian."""
MAX_SCHEMA_BYTES: Final = 512 * 1024
"""The largest text of a schema, its properties counted, in UTF-8."""
MAX_SCHEMA_VERSIONS: Final = 1000
"""The most versions that a topic keeps."""
REGISTERED_BY_LENGTH: Final = 200
KEY_VALUE: Final = SchemaType.KEY_VALUE.name
_PAIR_ENCODING: Final = "kv.encoding.type"
_SEPARATED: Final = "SEPARATED"
PARTS: Final = ("key", "value")
JAVA_PROPERTIES: Final = ("__alwaysAllowNull", "__jsr310ConversionEnabled")
"""Properties of the schemas that Java's clients derive from classes."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A schema as a producer, a consumer or an administrator gives it.

    `type` is the name of a SchemaType. `properties` are no part of its content.
    """

    type: str
    text: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> TopicSchema:
        """Take a schema back from its fields."""
        return cls(fields["type"], fields["text"], fields["properties"])

    def parts(self) -> tuple[TopicSchema, TopicSchema]:
        """Return the schemas of the key and the value of a KEY_VALUE schema. Raises ValueError."""
        texts = json.loads(self.text)
        if not isinstance(texts, dict) or any(not isinstance(texts.get(part), str) for part in PARTS):
            raise ValueError("it has no texts of a key and a value")
        key, value = (
            TopicSchema(
                self.properties.get(f"{part}.schema.type", "BYTES"),
                texts[part],
                _properties(self.properties.get(f"{part}.schema.properties", "")),
            )
            for part in PARTS
        )
        if KEY_VALUE in (key.type, value.type):
            raise ValueError("a pair is no key, and no value, of a pair")
        return key, value

    @classmethod
    def of_parts(cls, key: TopicSchema, value: TopicSchema, *, separated: bool = False) -> TopicSchema:
        """Return the schema of pairs, as Java's clients register it.

        `separated`: their keys are the messages', and not in the payload.
        """
        properties = {_PAIR_ENCODING: _SEPARATED if separated else "INLINE"}
        for part, schema in zip(PARTS, (key, value), strict=True):
            properties[f"{part}.schema.name"] = part
            properties[f"{part}.schema.type"] = schema.type
            properties[f"{part}.schema.properties"] = json.dumps(dict(schema.properties))
        return cls(KEY_VALUE, json.dumps({"key": key.text, "value": value.text}), properties)

    @property
    def is_separated(self) -> bool:
        """Whether the keys of pairs are those of their messages."""
        return self.properties.get(_PAIR_ENCODING) == _SEPARATED

    @property
    def is_java(self) -> bool:
        """Whether a Java client gave it, which writes bytes in JSON as base64."""
        return any(name in self.properties for name in JAVA_PROPERTIES) or '"java-class"' in self.text

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, for another process."""
        return {"type": self.type, "text": self.text, "properties": dict(self.properties)}


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a topic's schema.

    It says by whom it was registered, and when, in ms since 1970.
    """

    version: int
    schema: TopicSchema
    registered_by: str
    registered_ms: int

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> SchemaVersion:
        """Take a version back from its fields."""
        return cls(
            fields["version"], TopicSchema.of(fields), fields["registered_by"], fields["registered_ms"]
        )

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, for another process."""
        return {
            "version": self.version,
            **self.schema.fields(),
            "registered_by": self.registered_by,
            "registered_ms": self.registered_ms,
        }


def version_bytes(version: int) -> bytes:
    """Return a version as messages carry it."""
    return version.to_bytes(VERSION_BYTES, "big")


def version_number(written: bytes) -> int | None:
    """Return the version that a message carries; None if it has none."""
    return int.from_bytes(written, "big") if len(written) == VERSION_BYTES else None


def _properties(text: str) -> dict[str, str]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}
