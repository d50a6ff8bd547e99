"""Changes are appended to a log first, then put into the catalog (ADR 0031).

The logs are ordinary topics: they lie in the stores, and a catalog that is made anew is filled from them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pulsar_ray.broker.catalog.administration import permissions
from pulsar_ray.broker.catalog.administration.change_event import Action, ChangeEvent, EventType, NotAnEvent
from pulsar_ray.broker.catalog.administration.effective_policies import logs_of
from pulsar_ray.broker.catalog.administration.tenants import BUILT_IN_NAMESPACES, BUILT_IN_TENANTS
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.schemas.schema_table import SchemaEntry
from pulsar_ray.broker.serving.logs.line_limits import event as log_event
from pulsar_ray.errors import InvalidConfiguration, PulsarException, RemoteStoreUnavailable, WrongNode
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.policies import NAMESPACE, TOPIC, Overrides, PolicyValue, checked_value
from pulsar_ray.model.topic_name import (
    CHANGE_LOG_PARTITIONS,
    SYSTEM_NAMESPACE,
    TopicName,
    change_log,
    is_system_topic,
    system_change_log,
)

logger = logging.getLogger(__name__)

READ_AHEAD_LOGS = 4
"""So many are started at the same time, to be read one after the other."""
LATEST_MS = 24 * 3600 * 1000
"""No append is under way for so long."""


class LogPartitions(Protocol):
    """The partitions of change logs, which are started when they are called."""

    async def prepare(self, log: TopicName, partitions: int) -> None:
        """Make a log unless it is there; all stores record first that there are logs."""

    async def append(self, partition: str, key: str, value: str) -> Position:
        """Append one message, durably. Raises WrongNode while the partition's store is away.

        Of one that failed nobody knows whether it was appended.
        """
        ...

    async def expect(self, partitions: list[str]) -> None:
        """Begin to start partitions that will be read soon, as far as that goes."""

    async def read(self, partition: str, behind: Position) -> list[dict[str, Any]]:
        """Return the next messages behind a position, as the partition's `read_messages`; [] at the end."""
        ...


@dataclass(slots=True)
class _Tail:
    """The last event of each subject behind what was applied, and where the log ends."""

    events: dict[tuple[EventType, str], ChangeEvent]
    end: Position


class ChangeLogs:
    """Records changes one by one, and applies those that the catalog lacks."""

    def __init__(
        self,
        catalog: Catalog,
        partitions: LogPartitions,
        now_ms: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._table = catalog.change_logs
        self._applied = AppliedChanges(catalog)
        self._partitions = partitions
        self._now_ms = now_ms
        self._lock = asyncio.Lock()
        self._compared: set[str] = set()
        self._reported: dict[str, str] = {}
        self._table.unknown.update(self._table.dirty())
        with suppress(RemoteStoreUnavailable):  # another day will do
            self._table.forget_deleted(now_ms() - LATEST_MS)

    async def record(self, log: TopicName, decide: Callable[[int], ChangeEvent | None]) -> ChangeEvent | None:
        """Make one change; durable in its log and the catalog when this returns.

        `decide` is given the change's version once all earlier ones are applied; it returns None if there is
        nothing to change, or raises the refusal. An append that failed may have happened: it is applied with
        the next change, or when the controller starts.
        """
        await self._catalog.settled()  # also what an earlier call could not wait for
        async with self._lock:
            if self._table.is_dirty(system_change_log().full):
                await self._catch_up(system_change_log().full)
            await self._compare(log.full)
            event = decide(self._catalog.policies.next_version(self._now_ms()))
            if event is None:
                return None
            await self._announce(log)
            await self._append(log, event)
            await self._catalog.settled()
            return event

    async def _compare(self, log: str) -> None:
        """Apply what stands in a log before something is appended to it.

        A clean one is read once in a controller's life: the catalog may have been put back from a copy.
        """
        if self._table.is_dirty(log) or (self._table.is_known(log) and log not in self._compared):
            await self._catch_up(log)

    async def _announce(self, log: TopicName) -> None:
        """Let the cluster's own log name a partition before its first event.

        A catalog that is made anew knows from there which logs there have to be.
        """
        if log.is_partition and not self._table.is_known(log.full):
            await self._partitions.prepare(TopicName.parse(log.partitioned_full), CHANGE_LOG_PARTITIONS)
            # It starts while the cluster's own log, perhaps, starts too.
            await self._partitions.expect([log.full])
            await self._compare(system_change_log().full)
            version = self._catalog.policies.next_version(self._now_ms())
            used = ChangeEvent(EventType.CHANGE_LOG, Action.INSERT, log.full, version)
            await self._append(system_change_log(), used)

    async def _append(self, log: TopicName, event: ChangeEvent) -> None:
        if not log.is_partition:
            await self._partitions.prepare(log, 0)
        self._table.mark_dirty(log.full)
        await self._catalog.settled()
        behind = self._table.applied(log.full)
        position = await self._partitions.append(log.full, event.subject, event.to_json())
        _say(event)
        if position != behind.next():
            # In between may stand an earlier append whose answer was lost; or a new ledger has begun.
            await self._catch_up(log.full)
            return
        with self._table.transaction():
            self._applied.apply(event)
            self._table.mark_applied(log.full, position)

    async def forget_topic(self, topic: TopicName, *, force: bool) -> None:
        """Delete the policies and schemas of a topic that is being deleted.

        Raises the reason if they cannot be, unless forced: a catalog that is made anew may then find them.
        """
        subject, policies, schemas = topic.full, self._catalog.policies, self._catalog.schemas
        async with self._lock:
            # A change of this topic that is under way is applied by now.
            kinds = [EventType.TOPIC_POLICY] if policies.version(subject) else []
            kinds += [EventType.TOPIC_SCHEMA] if schemas.last_version(subject) is not None else []
        for kind in kinds:

            def decide(version: int, kind: EventType = kind) -> ChangeEvent:
                return ChangeEvent(kind, Action.DELETE, subject, version)

            try:
                await self.record(logs_of(subject)[-1], decide)
            except PulsarException:
                if not force:
                    raise
                (policies if kind is EventType.TOPIC_POLICY else schemas).forget(subject)

    async def catch_up(self) -> None:
        """Apply the tails of all logs that can be read, and report which cannot.

        Called at the start and as long as `is_behind`. Changes get their turn between two logs.
        """
        tried: set[str] = set()
        # The cluster's own log comes first: it names the others.
        while left := sorted(set(self._table.dirty()) - tried, key=_system_first):
            await self._partitions.expect(left[:READ_AHEAD_LOGS])
            tried.add(left[0])
            async with self._lock:
                try:
                    if self._table.is_dirty(left[0]):
                        await self._catch_up(left[0])
                except PulsarException as error:
                    self._report(left[0], str(error))

    def _report(self, log: str, reason: str) -> None:
        if self._reported.get(log) != reason:
            self._reported[log] = reason
            logger.warning("the changes in %s are not known yet: %s", log, reason)

    async def abandon(self, namespace: str) -> list[str]:
        """Give up those logs of a namespace whose stores are lost for good.

        Changes that only stood there are gone; what the catalog knows is written to new ones. Returns the
        partitions, none that can be read.
        """
        lost: list[str] = []
        async with self._lock:
            for log in filter(self._table.is_known, logs_of_namespace(namespace)):
                try:
                    await self._catch_up(log)
                except WrongNode as error:
                    logger.warning("%s is given up: %s", log, error)
                    with self._table.transaction():
                        self._catalog.drop_partition(log)
                        self._table.forget(log)
                        self._let_updates_be_newer(log)
                    lost.append(log)
            for log in lost:
                if log == system_change_log().full:
                    # Known again even if nothing is written to it: stores record that there is such a log.
                    await self._partitions.prepare(system_change_log(), 0)
                    self._table.mark_applied(log, EARLIEST)
                for event in list(known_events(self._catalog, log)):
                    await self._announce(event.log)
                    await self._append(event.log, event)
        await self._catalog.settled()
        return lost

    async def make_known(self, *logs: TopicName) -> None:
        """Apply the changes of these logs if they are not known yet.

        Raises the reason if a log cannot be read.
        """
        if any(log.full in self._table.unknown for log in logs):
            async with self._lock:
                for log in logs:
                    if log.full in self._table.unknown:
                        await self._catch_up(log.full)

    @property
    def is_behind(self) -> bool:
        """Whether a log has still to be read, for an append may have happened."""
        return bool(self._table.dirty())

    async def _catch_up(self, log: str) -> None:
        """Apply what stands in a log behind what was applied."""
        tail = await self._read(log)
        known = set(self._table.dirty())
        with self._table.transaction():
            for event in sorted(tail.events.values(), key=lambda event: event.version):
                if not self._is_outlived(event, tail):
                    self._applied.apply(event)
            self._table.mark_applied(log, tail.end)
        self._compared.add(log)
        self._reported.pop(log, None)
        self._table.unknown.update(set(self._table.dirty()) - known)
        if log in self._table.unknown:
            self._table.unknown.discard(log)
            self._let_updates_be_newer(log)

    def _let_updates_be_newer(self, log: str) -> None:
        """Raise the versions of a log's namespaces: their policies are complete now."""
        policies, tenants = self._catalog.policies, self._catalog.tenants
        version = policies.next_version(self._now_ms())
        is_of_all = log == system_change_log().full
        names = tenants.all_namespaces() if is_of_all else [TopicName.parse(log).namespace_name]
        with self._table.transaction():
            for name in names:
                policies.touch(name, version)

    def _is_outlived(self, event: ChangeEvent, tail: _Tail) -> bool:
        """Whether the namespace of a named log partition was deleted, or made anew, since."""
        if event.type is not EventType.CHANGE_LOG:
            return False
        later = tail.events.get((EventType.NAMESPACE, event.namespace))
        return later is not None and later.version > event.version

    async def _read(self, log: str) -> _Tail:
        tail = _Tail({}, self._table.applied(log))
        while page := await self._partitions.read(log, tail.end):
            for record in page:
                tail.end = Position(*record["position"])
                try:
                    if record["problem"]:
                        raise NotAnEvent(record["problem"])
                    event = ChangeEvent.from_json(record["value"])
                    if event.log.full != log:
                        raise NotAnEvent(f"it belongs to {event.log.full}")
                except NotAnEvent as error:
                    logger.warning(
                        "the record at %d:%d of %s is no change, and is skipped: %s %s",
                        *tail.end,
                        log,
                        record["place"],
                        error,
                    )
                else:
                    former = tail.events.setdefault(event.key, event)
                    if event.version >= former.version:
                        tail.events[event.key] = event
        return tail


def _system_first(log: str) -> tuple[bool, str]:
    return log != system_change_log().full, log


def _say(change: ChangeEvent) -> None:
    """Log a change that is durable."""
    kind = change.type
    if kind is EventType.CHANGE_LOG:
        return
    if kind is EventType.TOPIC_SCHEMA:
        log_event(logger, "%s", _said_of_schema(change.schema), topic=change.subject)
        return
    topic = change.subject if kind is EventType.TOPIC_POLICY else ""
    done = {Action.INSERT: "made", Action.UPDATE: "changed", Action.DELETE: "deleted"}[change.action]
    if kind in (EventType.NAMESPACE_POLICY, EventType.TOPIC_POLICY) and change.action is Action.DELETE:
        log_event(logger, "policies of %s deleted", change.subject, topic=topic)
    elif kind in (EventType.NAMESPACE_POLICY, EventType.TOPIC_POLICY):
        values = json.dumps({name: dict(value) for name, value in sorted(change.policies.items())})
        log_event(logger, "policies of %s %s: %s", change.subject, done, values, topic=topic)
    else:
        log_event(logger, "%s %s %s", kind.value.lower(), change.subject, done)


def _said_of_schema(entry: SchemaEntry | None) -> str:
    if entry is None:
        return "schemas deleted with the topic"
    if entry.schema is None:
        return f"schemas deleted as version {entry.version} by {entry.registered_by}"
    return f"schema version {entry.version} of type {entry.schema.type} registered by {entry.registered_by}"


def logs_of_namespace(namespace: str) -> list[str]:
    """The names of all partitions that the change log of a namespace may have."""
    if namespace == SYSTEM_NAMESPACE:
        return [system_change_log().full]
    return [change_log(namespace).partition(index).full for index in range(CHANGE_LOG_PARTITIONS)]


def known_events(catalog: Catalog, log: str) -> Iterator[ChangeEvent]:
    """Yield events that tell a new catalog what this one knows of a log's subjects.

    They have the versions of the changes that they stand for.
    """
    if log == system_change_log().full:
        yield from _events_of_cluster(catalog)
        return
    for namespace in catalog.tenants.all_namespaces():
        kinds = [(EventType.NAMESPACE_POLICY, namespace)]
        kinds += [(EventType.TOPIC_POLICY, topic) for topic in catalog.policies.topics(namespace)]
        for kind, subject in kinds:
            event = _event(
                catalog, kind, Action.UPDATE, subject, policies=catalog.policies.overrides(subject)
            )
            if event.policies and event.log.full == log:
                yield event
        for topic in catalog.schemas.topics(namespace):
            for entry, version in catalog.schemas.entries(topic):
                event = ChangeEvent(EventType.TOPIC_SCHEMA, Action.INSERT, topic, version, schema=entry)
                if event.log.full == log:
                    yield event


def _events_of_cluster(catalog: Catalog) -> Iterator[ChangeEvent]:
    tenants = catalog.tenants
    for tenant in tenants.names():
        if tenant not in BUILT_IN_TENANTS:
            yield _event(catalog, EventType.TENANT, Action.INSERT, tenant, info=tenants.info(tenant))
    for namespace in tenants.all_namespaces():
        if namespace not in BUILT_IN_NAMESPACES:
            own = catalog.policies.overrides(namespace)
            yield _event(catalog, EventType.NAMESPACE, Action.INSERT, namespace, policies=own)
        for log in catalog.change_logs.of_log(change_log(namespace).full):
            yield _event(catalog, EventType.CHANGE_LOG, Action.INSERT, log)


def _event(catalog: Catalog, kind: EventType, action: Action, subject: str, **content: Any) -> ChangeEvent:
    version = catalog.change_logs.version_of(kind.value, subject)
    # One that was restored from topics was never changed.
    return ChangeEvent(kind, action, subject, max(version, 1), **content)


class AppliedChanges:
    """Applies events to the catalog's tables.

    An event that comes again, or behind a later one of its subject, changes nothing.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._tenants = catalog.tenants
        self._policies = catalog.policies
        self._changes = catalog.change_logs

    def apply(self, event: ChangeEvent) -> None:
        """Make one change; a deletion leaves namespaces that have topics."""
        # One that is found late comes behind updates that actors have taken: it makes a newer one.
        update_version = self._policies.next_version(event.version)
        self._policies.seen_version(event.version)
        if event.version <= self._changes.version_of(event.type.value, event.subject):
            return
        is_gone = event.action is Action.DELETE
        match event.type:
            case EventType.TENANT:
                self._apply_to_tenant(event, is_gone=is_gone)
            case EventType.NAMESPACE:
                self._apply_to_namespace(event, update_version, is_gone=is_gone)
            case EventType.CHANGE_LOG:
                if not self._changes.is_known(event.subject):
                    self._changes.mark_dirty(event.subject)
            case EventType.NAMESPACE_POLICY:
                self._put(event, NAMESPACE, update_version)
            case EventType.TOPIC_POLICY if is_gone:
                self._policies.forget(event.subject)
            case EventType.TOPIC_POLICY:
                self._put(event, TOPIC, update_version)
            case EventType.TOPIC_SCHEMA if event.schema is not None:
                self._put_schema(event, event.schema, update_version)
                return
            case EventType.TOPIC_SCHEMA:
                self._catalog.schemas.forget(event.subject)
        self._changes.note_version(event.type.value, event.subject, event.version, is_deleted=is_gone)

    def _apply_to_tenant(self, event: ChangeEvent, *, is_gone: bool) -> None:
        if not is_gone:
            self._tenants.put(event.subject, event.info)
        elif not self._tenants.namespaces_below(event.subject):
            self._tenants.remove(event.subject)

    def _apply_to_namespace(self, event: ChangeEvent, update_version: int, *, is_gone: bool) -> None:
        if is_gone:
            self._remove_namespace(event.subject)
            return
        self._tenants.add_namespace(event.subject)
        if event.version > self._changes.version_of(EventType.NAMESPACE_POLICY.value, event.subject):
            self._policies.put(event.subject, _known(event, NAMESPACE), update_version)

    def _put(self, event: ChangeEvent, level: str, update_version: int) -> None:
        # A log may be left of a namespace that was deleted, and made anew since.
        made = self._changes.version_of(EventType.NAMESPACE.value, event.namespace)
        if event.version >= made and self._tenants.has_namespace(event.namespace):
            self._policies.put(event.subject, _known(event, level), update_version)

    def _put_schema(self, event: ChangeEvent, entry: SchemaEntry, update_version: int) -> None:
        made = self._changes.version_of(EventType.NAMESPACE.value, event.namespace)
        if event.version >= made and self._tenants.has_namespace(event.namespace):
            schemas = self._catalog.schemas
            had_schema = schemas.has_schema(event.subject)
            schemas.put(event.subject, entry, event.version)
            if schemas.has_schema(event.subject) != had_schema:
                # Partitions enforce a schema only where there is one.
                self._policies.touch(event.subject, update_version)

    def _remove_namespace(self, namespace: str) -> None:
        catalog = self._catalog
        topics = [TopicName.parse(name) for name, _ in catalog.topics_of(namespace)]
        if any(not is_system_topic(topic) for topic in topics):
            logger.warning("namespace %s was deleted, but has topics: it is kept", namespace)
            return
        for subject in (namespace, *self._policies.topics(namespace)):
            self._policies.forget(subject)
        for subject in catalog.schemas.topics(namespace):
            catalog.schemas.forget(subject)
        for topic in topics:
            catalog.delete(topic.full)
        for partition in catalog.change_logs.of_log(change_log(namespace).full):
            catalog.change_logs.forget(partition)
        self._tenants.remove_namespace(namespace)


def _known(event: ChangeEvent, level: str) -> Overrides:
    """Return the policies of an event that this build takes; others are reported."""
    known: dict[str, PolicyValue] = {}
    for name, value in event.policies.items():
        try:
            if name in (permissions.ROLES, permissions.SUBSCRIPTIONS):
                known[name] = permissions.checked(name, value)
                continue
            known[name] = checked_value(name, level, value)
        except InvalidConfiguration as error:
            logger.warning("a policy of %s is left out: %s", event.subject, error)
    return known
