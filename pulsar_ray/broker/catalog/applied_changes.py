"""Putting the events of change logs into the catalog."""

from __future__ import annotations

import logging

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.change_event import Action, ChangeEvent, EventType
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.policies import NAMESPACE, TOPIC, Overrides, PolicyValue, checked_value
from pulsar_ray.model.system_topics import change_log, is_system_topic
from pulsar_ray.model.topic_name import TopicName

logger = logging.getLogger(__name__)


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
        self._policies.seen_version(event.version)
        if event.version <= self._changes.version_of(event.type.value, event.subject):
            return
        is_gone = event.action is Action.DELETE
        match event.type:
            case EventType.TENANT:
                self._apply_to_tenant(event, is_gone=is_gone)
            case EventType.NAMESPACE:
                self._apply_to_namespace(event, is_gone=is_gone)
            case EventType.CHANGE_LOG:
                if not self._changes.is_known(event.subject):
                    self._changes.mark_dirty(event.subject)
            case EventType.NAMESPACE_POLICY:
                self._put(event, NAMESPACE)
            case EventType.TOPIC_POLICY if is_gone:
                self._policies.forget(event.subject)
            case EventType.TOPIC_POLICY:
                self._put(event, TOPIC)
        self._changes.note_version(event.type.value, event.subject, event.version, is_deleted=is_gone)

    def _apply_to_tenant(self, event: ChangeEvent, *, is_gone: bool) -> None:
        if not is_gone:
            self._tenants.put(event.subject, event.info)
        elif not self._tenants.namespaces_below(event.subject):
            self._tenants.remove(event.subject)

    def _apply_to_namespace(self, event: ChangeEvent, *, is_gone: bool) -> None:
        if is_gone:
            self._remove_namespace(event.subject)
            return
        self._tenants.add_namespace(event.subject)
        if event.version > self._changes.version_of(EventType.NAMESPACE_POLICY.value, event.subject):
            self._policies.put(event.subject, _known(event, NAMESPACE), event.version)

    def _put(self, event: ChangeEvent, level: str) -> None:
        # A log may be left of a namespace that was deleted, and made anew since.
        made = self._changes.version_of(EventType.NAMESPACE.value, event.namespace)
        if event.version >= made and self._tenants.has_namespace(event.namespace):
            self._policies.put(event.subject, _known(event, level), event.version)

    def _remove_namespace(self, namespace: str) -> None:
        catalog = self._catalog
        topics = [TopicName.parse(name) for name, _ in catalog.topics_of(namespace)]
        if any(not is_system_topic(topic) for topic in topics):
            logger.warning("namespace %s was deleted, but has topics: it is kept", namespace)
            return
        for subject in (namespace, *self._policies.topics(namespace)):
            self._policies.forget(subject)
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
            known[name] = checked_value(name, level, value)
        except InvalidConfiguration as error:
            logger.warning("a policy of %s is left out: %s", event.subject, error)
    return known
