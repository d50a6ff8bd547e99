"""Whether a schema may be a topic's next version, or be read with: Pulsar's strategies."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from pulsar_ray.broker.catalog.schemas.avro_types import AvroType, parse_definition
from pulsar_ray.broker.catalog.schemas.columns import column_misfits
from pulsar_ray.broker.catalog.schemas.content import AVRO_LIKE
from pulsar_ray.broker.catalog.schemas.resolution import Effort, Misfit, misfits
from pulsar_ray.errors import IncompatibleSchema
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import KEY_VALUE, PARTS, SchemaVersion, TopicSchema

_PROTOBUF_NATIVE: Final = SchemaType.PROTOBUF_NATIVE.name


def check_next_version(
    strategy: str, schema: TopicSchema, versions: Sequence[SchemaVersion], topic: str
) -> None:
    """Raise IncompatibleSchema unless a schema that is new may follow on a topic's versions.

    `versions` are in their order. BACKWARD: the new one reads the old; FORWARD: the old reads the new.
    Without _TRANSITIVE only the latest counts.
    """
    if not versions or strategy == "ALWAYS_COMPATIBLE":
        return
    if strategy == "ALWAYS_INCOMPATIBLE":
        latest = versions[-1]
        raise IncompatibleSchema(
            f"{topic} takes no new schema by its strategy ALWAYS_INCOMPATIBLE: use version {_said(latest)}, "
            "or set the policy schema_compatibility_strategy"
        )
    check = _Check(strategy, schema, topic)
    for version in versions if strategy.endswith("_TRANSITIVE") else versions[-1:]:
        check.against(version)


def check_reader(strategy: str, schema: TopicSchema, versions: Sequence[SchemaVersion], topic: str) -> None:
    """Raise IncompatibleSchema unless a consumer with this schema may read a topic with these versions."""
    if not versions or strategy == "ALWAYS_COMPATIBLE":
        return
    if strategy in ("ALWAYS_INCOMPATIBLE", "BACKWARD_TRANSITIVE", "FULL_TRANSITIVE"):
        check_next_version(strategy, schema, versions, topic)
        return
    _Check(strategy, schema, topic).reads(versions[-1])


class _Check:
    def __init__(self, strategy: str, schema: TopicSchema, topic: str) -> None:
        self._strategy = strategy
        self._schema = schema
        self._topic = topic
        self._effort = Effort()

    def against(self, version: SchemaVersion) -> None:
        name = self._strategy.removesuffix("_TRANSITIVE")
        if name in ("BACKWARD", "FULL"):
            self.reads(version)
        if name in ("FORWARD", "FULL"):
            self._compare(
                version,
                version.schema,
                self._schema,
                lambda said: (
                    f"a consumer with version {said} could not read what is written with this schema"
                ),
            )

    def reads(self, version: SchemaVersion) -> None:
        self._compare(
            version,
            self._schema,
            version.schema,
            lambda said: f"this schema cannot read what was written with version {said}",
        )

    def _compare(
        self, version: SchemaVersion, reader: TopicSchema, writer: TopicSchema, say: Callable[[str], str]
    ) -> None:
        try:
            found = _found(reader, writer, self._effort)
        except ValueError as error:
            raise self._refusal(say(_said(version)), [Misfit("", str(error))]) from None
        if found:
            raise self._refusal(say(_said(version)), found)

    def _refusal(self, said: str, found: list[Misfit]) -> IncompatibleSchema:
        places = "; ".join(
            f"field {each.path!r}: {each.reason}" if each.path else each.reason for each in found
        )
        remedies = dict.fromkeys(each.remedy for each in found if each.remedy)
        remedy = "; ".join(remedies) or "send and read such values on another topic"
        return IncompatibleSchema(
            f"{self._topic}: {said}, as the strategy {self._strategy} wants: {places}. To help: {remedy}; or "
            "set the policy schema_compatibility_strategy of the topic or namespace"
        )


def _said(version: SchemaVersion) -> str:
    when = datetime.datetime.fromtimestamp(version.registered_ms / 1000, datetime.timezone.utc)
    by = f" by {version.registered_by}" if version.registered_by else ""
    return (
        f"{version.version} (of type {version.schema.type}, registered{by} at {when:%Y-%m-%d %H:%M:%S} UTC)"
    )


def _found(  # noqa: PLR0911 - one for each type
    reader: TopicSchema, writer: TopicSchema, effort: Effort
) -> list[Misfit]:
    if reader.type != writer.type:
        return [Misfit("", f"{writer.type} cannot be read as {reader.type}")]
    if reader.type in AVRO_LIKE:
        return misfits(_parsed(reader.text), _parsed(writer.text), effort)
    if reader.type == SchemaType.ARROW.name:
        return column_misfits(reader.text, writer.text)
    if reader.type == KEY_VALUE and reader.is_separated != writer.is_separated:
        return [Misfit("key", "it is in the payload with one, and the message's key with the other")]
    if reader.type == KEY_VALUE:
        readers, writers = reader.parts(), writer.parts()
        return [
            Misfit(f"{part}.{each.path}" if each.path else part, each.reason, each.remedy)
            for part, one, other in zip(PARTS, readers, writers, strict=True)
            for each in _found(one, other, effort)
        ]
    if reader.type == _PROTOBUF_NATIVE:
        mine, theirs = (json.loads(each.text)["rootMessageTypeName"] for each in (reader, writer))
        return [] if mine == theirs else [Misfit("", f"the message {theirs} cannot be read as {mine}")]
    return []


def _parsed(text: str) -> AvroType:
    definition: Any = json.loads(text)
    return parse_definition(definition)
