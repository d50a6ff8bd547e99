"""Change logs that are lost for good are written again from the catalog."""

from __future__ import annotations

from collections.abc import Iterator

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


def known_events(catalog: Catalog, log: str, version: int) -> Iterator[ChangeEvent]:
    """Yield events that tell a new catalog what this one knows of a log's subjects."""
    if log == system_change_log().full:
        yield from _events_of_cluster(catalog, version)
        return
    for namespace in catalog.tenants.all_namespaces():
        kinds = [(EventType.NAMESPACE_POLICY, namespace)]
        kinds += [(EventType.TOPIC_POLICY, topic) for topic in catalog.policies.topics(namespace)]
        for kind, subject in kinds:
            own = catalog.policies.overrides(subject)
            event = ChangeEvent(kind, Action.UPDATE, subject, version, own)
            if own and event.log.full == log:
                yield event


def _events_of_cluster(catalog: Catalog, version: int) -> Iterator[ChangeEvent]:
    tenants = catalog.tenants
    for tenant in tenants.names():
        if tenant not in BUILT_IN_TENANTS:
            yield ChangeEvent(EventType.TENANT, Action.INSERT, tenant, version, info=tenants.info(tenant))
    for namespace in tenants.all_namespaces():
        if namespace not in BUILT_IN_NAMESPACES:
            own = catalog.policies.overrides(namespace)
            yield ChangeEvent(EventType.NAMESPACE, Action.INSERT, namespace, version, own)
        for log in catalog.change_logs.of_log(change_log(namespace).full):
            yield ChangeEvent(EventType.CHANGE_LOG, Action.INSERT, log, version)
