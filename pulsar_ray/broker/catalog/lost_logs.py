"""Change logs that are lost for good are written again from the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.change_event import Action, ChangeEvent, EventType
from pulsar_ray.broker.catalog.tenants import BUILT_IN_NAMESPACES, BUILT_IN_TENANTS
from pulsar_ray.model.system_topics import (
    CHANGE_LOG_PARTITIONS,
    SYSTEM_NAMESPACE,
    change_log,
    system_change_log,
)


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
