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
    """Applies events to the catalog's tables; the same event may come again."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._tenants = catalog.tenants
        self._policies = catalog.policies

    def apply(self, event: ChangeEvent) -> None:
        """Make one change; a deletion leaves namespaces that have topics."""
        is_gone = event.action is Action.DELETE
        match event.type:
            case EventType.TENANT if is_gone:
                if not self._tenants.namespaces_below(event.subject):
                    self._tenants.remove(event.subject)
            case EventType.TENANT:
                self._tenants.put(event.subject, event.info)
            case EventType.NAMESPACE if is_gone:
                self._remove_namespace(event.subject)
            case EventType.NAMESPACE:
                self._tenants.add_namespace(event.subject)
                self._put(event, NAMESPACE)
            case EventType.CHANGE_LOG:
                if not self._catalog.change_logs.is_known(event.subject):
                    self._catalog.change_logs.mark_dirty(event.subject)
            case EventType.NAMESPACE_POLICY:
                self._put(event, NAMESPACE)
            case EventType.TOPIC_POLICY if is_gone:
                self._policies.forget(event.subject)
            case EventType.TOPIC_POLICY:
                self._put(event, TOPIC)
        self._policies.seen_version(event.version)

    def _put(self, event: ChangeEvent, level: str) -> None:
        if event.version <= self._policies.change(event.subject):
            return
        if self._tenants.has_namespace(event.namespace):
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
