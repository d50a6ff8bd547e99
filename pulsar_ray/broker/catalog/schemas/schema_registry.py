"""The controller's calls about the schemas of topics (ADR 0126).

A version that was answered is durable, in a change log and in the catalog. A call that is repeated because
its answer was lost finds the version that it has made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pulsar_ray.broker.catalog.administration.change_event import Action, ChangeEvent, EventType
from pulsar_ray.broker.catalog.administration.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.administration.effective_policies import logs_of
from pulsar_ray.broker.catalog.schemas.compatibility import check_next_version, check_reader
from pulsar_ray.broker.catalog.schemas.content import check_schema, digest
from pulsar_ray.broker.catalog.schemas.schema_table import SchemaEntry
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.config import Settings
from pulsar_ray.errors import IncompatibleSchema, NotAllowedError, SchemaNotFound
from pulsar_ray.model.topic_name import TopicName, is_system_topic
from pulsar_ray.model.topic_schema import (
    MAX_SCHEMA_VERSIONS,
    REGISTERED_BY_LENGTH,
    SchemaVersion,
    TopicSchema,
)
from pulsar_ray.session.requests import NO_SCHEMA

NextCheck = Callable[[list[SchemaVersion]], None]


class SchemaRegistry:
    """Decides on the owner's loop, and records by `logs`.

    `in_use` says who uses a topic, or that it has messages; "" for an idle one. `changed` is awaited with a
    topic that has a schema from now on, or none any more. Names of partitions stand for their topics.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        logs: ChangeLogs,
        settings: Settings,
        now_ms: Callable[[], int],
        in_use: Callable[[str], Awaitable[str]],
        changed: Callable[[str], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._table = topics.catalog.schemas
        self._logs = logs
        self._settings = settings
        self._now_ms = now_ms
        self._in_use = in_use
        self._changed = changed

    # --- producers and consumers ------------------------------------------------------------------

    async def register(self, topic: str, fields: Mapping[str, Any], by: str) -> int:
        """Return the version of a producer's schema, made if it is new and fits.

        Raises IncompatibleSchema, with the reason, and NotAllowedError where the broker keeps no logs.
        """
        subject = await self._known_subject(topic)
        schema = _taken(fields)
        settings = self._topics.policies.settings_of(subject)

        def check(versions: list[SchemaVersion]) -> None:
            if not settings.is_allow_auto_update_schema_enabled:
                raise IncompatibleSchema(
                    f"{subject}: Schema not found and schema auto updating is disabled. Register it with "
                    "`pulsar-ray schemas upload`, or set the policy is_allow_auto_update_schema"
                )
            check_next_version(settings.schema_compatibility_strategy, schema, versions, subject)

        return await self._register(subject, schema, by, check)

    async def read_with(self, topic: str, fields: Mapping[str, Any], by: str) -> int:
        """Let a consumer read a topic with a schema.

        Returns the version of that, NO_SCHEMA if it is none of the topic's. An idle topic without a schema
        gets this one. Raises IncompatibleSchema, with the reason.
        """
        subject = await self._known_subject(topic)
        schema = _taken(fields)
        if not self._table.has_schema(subject):
            user = await self._in_use(subject)
            if user:
                raise IncompatibleSchema(
                    f"{subject}: Failed to add schema to an active topic with empty(BYTES) schema: new "
                    f"schema type {schema.type}; the topic has {user}. Register the schema first, by a "
                    "producer or `pulsar-ray schemas upload`, or subscribe without a schema"
                )
            return await self.register(subject, fields, by)
        strategy = self._topics.policies.settings_of(subject).schema_compatibility_strategy
        check_reader(strategy, schema, self._versions(strategy, subject), subject)
        known = self._table.known(subject, digest(schema))
        return NO_SCHEMA if known is None else known

    async def copy(self, source: str, version: int, target: str, by: str) -> int:
        """Let messages of a version be copied to another topic.

        Returns the version that the copies have there.

        They were accepted once: no strategy is asked. Raises SchemaNotFound for a version that is not there.
        """
        found = SchemaVersion.of(await self.get(source, version))
        subject = await self._known_subject(target)
        return await self._register(subject, found.schema, by, lambda _: None)

    # --- administration ---------------------------------------------------------------------------

    async def get(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """Return the fields of one version, or of the latest.

        Deleted ones are found by their numbers as long as their texts are kept. Raises SchemaNotFound,
        CorruptData.
        """
        subject = await self._known_subject(topic)
        table = self._table
        found = table.latest(subject) if version is None else table.version(subject, version)
        if found is None:
            last = table.last_version(subject)
            known = "it has none" if last is None else f"its last one is {last}"
            wanted = "" if version is None else f" {version}"
            raise SchemaNotFound(f"Schema not found: {subject} has no version{wanted} of a schema; {known}")
        return found.fields()

    async def versions(self, topic: str) -> list[dict[str, Any]]:
        """Return the fields of all versions that are not deleted, in order."""
        subject = await self._known_subject(topic)
        return [found.fields() for found in self._table.versions(subject)]

    async def in_short(self, topic: str) -> dict[str, Any]:
        """Return `schemaType` and `schemaVersion` of the latest version; empty without one."""
        return self._table.in_short(await self._known_subject(topic))

    async def upload(self, topic: str, fields: Mapping[str, Any], by: str) -> int:
        """Return the version of a schema, made if it is new and fits.

        Auto-update does not matter.
        """
        subject = await self._known_subject(topic)
        schema = _taken(fields)
        strategy = self._topics.policies.settings_of(subject).schema_compatibility_strategy
        return await self._register(
            subject, schema, by, lambda versions: check_next_version(strategy, schema, versions, subject)
        )

    async def delete(self, topic: str, by: str, force: bool) -> int:
        """Delete a topic's schema; returns the number that the deletion takes, NO_SCHEMA without a schema.

        The next one may be any. Texts stay for the messages that were written with them, unless forced.
        """
        subject = await self._known_subject(topic)
        self._check_keeps_logs()

        def decide(version: int) -> ChangeEvent | None:
            if not (self._table.has_schema(subject) or (force and self._table.count(subject) > 1)):
                return None
            entry = SchemaEntry(self._next_number(subject), None, _cut(by), self._now_ms(), force)
            return ChangeEvent(EventType.TOPIC_SCHEMA, Action.INSERT, subject, version, schema=entry)

        event = await self._logs.record(logs_of(subject)[-1], decide)
        if event is None or event.schema is None:
            return NO_SCHEMA
        await self._tell(subject)
        return event.schema.version

    async def test(self, topic: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Say whether a schema would be taken.

        Returns the `strategy`, the `version` if it is known, and the `reason` of a refusal.
        """
        subject = await self._known_subject(topic)
        strategy = self._topics.policies.settings_of(subject).schema_compatibility_strategy
        try:
            schema = _taken(fields)
            known = self._table.known(subject, digest(schema))
            if known is None:
                check_next_version(strategy, schema, self._versions(strategy, subject), subject)
        except IncompatibleSchema as error:
            return {"strategy": strategy, "version": NO_SCHEMA, "reason": error.text}
        return {"strategy": strategy, "version": NO_SCHEMA if known is None else known, "reason": ""}

    # --- inside -----------------------------------------------------------------------------------

    async def _known_subject(self, topic: str) -> str:
        """Return the name of the whole topic, once its versions are known."""
        name = TopicName.parse(topic)
        if is_system_topic(name):
            raise NotAllowedError(f"{name.full} is the broker's own topic and has no schema: read bytes")
        row = self._topics.partition(name)
        subject = row.topic if row is not None else name.partitioned_full
        await self._logs.make_known(*logs_of(subject))
        self._topics.catalog.tenants.check_namespace(name.namespace_name)
        return subject

    def _check_keeps_logs(self) -> None:
        if not self._settings.system_topic_enabled:
            raise NotAllowedError(
                "this broker keeps no system topics, where schemas are written: start it with "
                "system_topic_enabled, or send bytes"
            )

    def _versions(self, strategy: str, subject: str) -> list[SchemaVersion]:
        """The versions that a strategy looks at."""
        if strategy.endswith("_TRANSITIVE"):
            return self._table.versions(subject)
        latest = self._table.latest(subject)
        return [] if latest is None else [latest]

    async def _register(self, subject: str, schema: TopicSchema, by: str, check: NextCheck) -> int:
        content = digest(schema)
        known = self._table.known(subject, content)
        if known is None:
            self._check_keeps_logs()
            known = await self._record(subject, schema, content, by, check)
        return known

    async def _record(
        self, subject: str, schema: TopicSchema, content: str, by: str, check: NextCheck
    ) -> int:
        strategy = self._topics.policies.settings_of(subject).schema_compatibility_strategy
        found: list[int] = []

        def decide(version: int) -> ChangeEvent | None:
            # Another may have registered it meanwhile: one version of each content.
            known = self._table.known(subject, content)
            if known is not None:
                found.append(known)
                return None
            check(self._versions(strategy, subject))
            number = self._next_number(subject)
            found.append(number)
            entry = SchemaEntry(number, schema, _cut(by), self._now_ms())
            return ChangeEvent(EventType.TOPIC_SCHEMA, Action.INSERT, subject, version, schema=entry)

        await self._logs.record(logs_of(subject)[-1], decide)
        await self._tell(subject)
        return found[-1]

    def _next_number(self, subject: str) -> int:
        if self._table.count(subject) >= MAX_SCHEMA_VERSIONS:
            raise IncompatibleSchema(
                f"{subject} has {MAX_SCHEMA_VERSIONS} versions of its schema, and no more are kept: delete "
                "them with `pulsar-ray schemas delete --force`, which loses the texts of old messages"
            )
        last = self._table.last_version(subject)
        return 0 if last is None else last + 1

    async def _tell(self, subject: str) -> None:
        """Let partitions know where it matters to them whether their topic has a schema."""
        if self._topics.policies.settings_of(subject).is_schema_validation_enforced:
            await self._changed(subject)


def _taken(fields: Mapping[str, Any]) -> TopicSchema:
    schema = TopicSchema.of(fields)
    check_schema(schema)
    return schema


def _cut(by: str) -> str:
    return str(by)[:REGISTERED_BY_LENGTH]
