"""`Admin.schemas`: the versions of topics' schemas."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from functools import partial
from typing import Any

from pulsar_ray.admin.topic_calls import Broker
from pulsar_ray.client.options.checks import check_flag, check_number, check_text
from pulsar_ray.client.options.given_schema import as_schema
from pulsar_ray.client.options.schema import Schema
from pulsar_ray.client.schemas.registration import asking_for
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.model.topic_schema import SchemaVersion, TopicSchema
from pulsar_ray.session.requests import NO_SCHEMA


@dataclass(frozen=True, slots=True)
class SchemaTest:
    """Whether a topic would take a schema, and by which strategy.

    `version` is its number if it is known. `reason` says what does not fit.
    """

    is_compatible: bool
    strategy: str
    version: int | None
    reason: str


class Schemas:
    """Administers the schemas of topics, which need not exist.

    The name of a partition stands for its topic. A schema is given as one of `pulsar_ray.schema`, as a
    dataclass or pydantic model (which stand for JSON), or as a TopicSchema: type, text, properties. Changes
    are durable when they return and may be repeated.
    """

    def __init__(self, broker: Broker) -> None:
        self._ask = partial(broker.ask, "call_part", "schemas")

    def get(self, topic: str, version: int | None = None) -> SchemaVersion:
        """Return a version, or the latest one.

        Deleted versions are found by their numbers while their texts are kept. Raises SchemaNotFound.
        """
        if version is not None:
            check_number("version", version, 0)
        return SchemaVersion.of(self._ask("get", _full(topic), version))

    def versions(self, topic: str) -> builtins.list[SchemaVersion]:
        """Return all versions that are not deleted, in the order in which they were registered."""
        return [SchemaVersion.of(fields) for fields in self._ask("versions", _full(topic))]

    def upload(self, topic: str, schema: Any) -> int:
        """Register a schema, and return its version; one that is known keeps its number.

        Producers need not be allowed to. Raises IncompatibleSchema, with the reason.
        """
        version: int = self._ask(
            "upload", _full(topic), _given(schema).fields(), asking_for("an administrator")
        )
        return version

    def delete(self, topic: str, force: bool = False) -> int | None:
        """Delete a topic's schema, so that any other may follow.

        Returns the number that the deletion takes, None where nothing was deleted. Messages can still be read
        by the versions that they have, unless it is forced: then the texts are gone.
        """
        check_flag("force", force)
        number: int = self._ask("delete", _full(topic), asking_for("an administrator"), force)
        return None if number == NO_SCHEMA else number

    def test(self, topic: str, schema: Any) -> SchemaTest:
        """Say whether a topic would take a schema, and why not; changes nothing."""
        found = self._ask("test", _full(topic), _given(schema).fields())
        version = None if found["version"] == NO_SCHEMA else found["version"]
        return SchemaTest(not found["reason"], found["strategy"], version, found["reason"])


def _full(topic: str) -> str:
    check_text("topic", topic)
    return TopicName.parse(topic).full


def _given(schema: Any) -> TopicSchema:
    given = as_schema(schema)
    if isinstance(given, TopicSchema):
        return given
    registered = given.registered() if isinstance(given, Schema) else None
    if registered is None:
        raise ValueError(
            f"Argument schema={schema!r:.100} is none that a topic can have: give a schema of values, a "
            "dataclass or a TopicSchema"
        )
    return registered
