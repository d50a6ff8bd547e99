"""The policies that hold for a namespace or topic, with all levels above."""

from __future__ import annotations

import logging
from functools import lru_cache

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.config import SUBSCRIPTION_TYPES, Settings
from pulsar_ray.format.block import MAX_BLOCK_SIZE, MAX_MESSAGE_SIZE
from pulsar_ray.model.policies import (
    AppliedPolicy,
    Overrides,
    PolicyUpdate,
    applied,
    sound_levels,
    sound_overrides,
)
from pulsar_ray.model.topic_name import (
    TopicName,
    change_log_partition,
    is_heartbeat,
    is_system_topic,
    system_change_log,
)
from pulsar_ray.setting_fields import SettingValue

logger = logging.getLogger(__name__)

_SYSTEM_TOPIC: dict[str, SettingValue] = {
    "default_retention_time_in_minutes": -1,
    "default_retention_size_in_mb": -1,
    "max_message_size": MAX_MESSAGE_SIZE,
    "netty_max_frame_size_bytes": MAX_BLOCK_SIZE,
    "max_producers_per_topic": 0,
    "max_consumers_per_topic": 0,
    "max_subscriptions_per_topic": 0,
    "max_consumers_per_subscription": 0,
    "max_unacked_messages_per_consumer": 0,
    "max_unacked_messages_per_subscription": 0,
    "subscription_types_enabled": ",".join(SUBSCRIPTION_TYPES),
    "dispatch_throttling_rate_per_subscription_in_msg": 0,
    "dispatch_throttling_rate_per_subscription_in_byte": 0,
    "max_publish_rate_per_topic_in_messages": 0,
    "max_publish_rate_per_topic_in_bytes": 0,
    "ttl_duration_default_in_seconds": 0,
    "backlog_quota_default_limit_bytes": -1,
    "backlog_quota_default_limit_second": -1,
    "subscription_expiration_time_minutes": 0,
    "broker_delete_inactive_topics_enabled": False,
    "is_schema_validation_enforced": False,
}
"""System topics keep everything, and no limit stands in their way."""
SYSTEM_TOPIC_UPDATE = PolicyUpdate(1, _SYSTEM_TOPIC)
_HEARTBEAT_UPDATE = PolicyUpdate(
    1, _SYSTEM_TOPIC | {"default_retention_time_in_minutes": 0, "default_retention_size_in_mb": 0}
)


ENFORCED = "is_schema_validation_enforced"


class EffectivePolicies:
    """Reads the catalog; `settings` are the broker's. Topics are whole ones, by their full names."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self._catalog = catalog
        self._table = catalog.policies
        self._settings = settings
        self._logged: set[str] = set()
        # Overrides repeat: as many sets of settings as there are policies are in use.
        self._replaced = lru_cache(maxsize=256)(_replaced)

    def settings_of(self, subject: str) -> Settings:
        """Return the settings that hold for a namespace, or a topic."""
        overridden = self._overridden(subject)
        return self._replaced(self._settings, tuple(overridden.items())) if overridden else self._settings

    def update_for(self, topic: str) -> PolicyUpdate:
        """Return the overrides of a topic for its actors. It has a version above 0."""
        name = TopicName.parse(topic)
        if is_system_topic(name):
            return _HEARTBEAT_UPDATE if is_heartbeat(name) else SYSTEM_TOPIC_UPDATE
        version = max(self._table.version(name.namespace_name), self._table.version(topic), 1)
        overridden = self._overridden(topic)
        enforced = overridden.get(ENFORCED, self._settings.is_schema_validation_enforced)
        if enforced and not self._catalog.schemas.has_schema(topic):
            # There is nothing to enforce yet; the registry tells when there is.
            overridden = {**overridden, ENFORCED: False}
        return PolicyUpdate(version, overridden, self.is_complete(topic))

    def is_complete(self, subject: str) -> bool:
        """Whether all logs that may have policies of a topic, or namespace, have been read."""
        unknown = self._catalog.change_logs.unknown
        return not unknown or not any(log.full in unknown for log in logs_of(subject))

    def applied(self, subject: str, name: str = "") -> list[AppliedPolicy]:
        """Return the effective policies with their sources, all or one.

        A policy that the broker's settings contradict does not hold, and is none of them. Those of a system
        topic are the broker's own.

        Raises InvalidConfiguration for a name that there is not.
        """
        if "://" in subject and is_system_topic(TopicName.parse(subject)):
            overridden = self.update_for(subject).overrides
            return applied(self._replaced(self._settings, tuple(overridden.items())), {}, {}, name=name)
        sound, _ = sound_levels(self._settings, *self._levels(subject))
        return applied(self._settings, *sound, name=name)

    def _overridden(self, subject: str) -> dict[str, SettingValue]:
        levels = self._levels(subject)
        if not any(levels):
            return {}
        overridden, refused = sound_overrides(self._settings, *levels)
        for each in refused:
            if (text := f"{subject}: {each}") not in self._logged:
                self._logged.add(text)
                logger.warning("%s contradicts the broker's settings, and does not hold: change one", text)
        return overridden

    def _levels(self, subject: str) -> list[Overrides]:
        if "://" not in subject:
            return [self._table.overrides(subject)]
        namespace = TopicName.parse(subject).namespace_name
        own = self._table.overrides(subject) if self._settings.topic_level_policies_enabled else {}
        return [self._table.overrides(namespace), own]


def logs_of(subject: str) -> list[TopicName]:
    """The logs that may have changes of the policies of a namespace or topic."""
    if "://" not in subject:
        return [system_change_log(), change_log_partition(subject, subject)]
    namespace = TopicName.parse(subject).namespace_name
    return [*logs_of(namespace), change_log_partition(namespace, subject)]


def _replaced(settings: Settings, overridden: tuple[tuple[str, SettingValue], ...]) -> Settings:
    return settings.replace(**dict(overridden))
