"""Schemas of topics and their versions, as the registry has them (ADR 0126)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

VERSION_BYTES: Final = 8
"""A message names its version in so many bytes, big-endian."""
MAX_SCHEMA_BYTES: Final = 512 * 1024
"""The largest text of a schema, its properties counted, in UTF-8."""
MAX_SCHEMA_VERSIONS: Final = 1000
"""The most versions that a topic keeps."""
REGISTERED_BY_LENGTH: Final = 200


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
