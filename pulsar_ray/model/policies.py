"""The policies of namespaces and topics: each overrides settings of the broker.

A policy groups the settings that pulsar-admin sets with one command. The effective settings of a topic are
the broker's, overridden by its namespace's policies, overridden by its own, each value for itself (Pulsar's
precedence).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsar_ray.config import Settings, setting_field
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.setting_fields import SettingValue, checked, parsed

NAMESPACE = "namespace"
TOPIC = "topic"
BROKER = "broker"
LEVELS = (NAMESPACE, TOPIC)

PolicyValue = dict[str, SettingValue]
"""A policy's arguments by name; some may be missing where the level above decides."""
Overrides = Mapping[str, PolicyValue]
"""The policies of one namespace or topic: values by the policy's name."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: its name, and the setting that each of its arguments overrides."""

    name: str
    doc: str
    settings: Mapping[str, str]
    levels: tuple[str, ...] = LEVELS
    wakes: bool = False
    """Whether a change of it makes sleeping partitions look what is to be done."""


@dataclass(frozen=True, slots=True)
class PolicyUpdate:
    """The settings that a topic's policies override, for its actors.

    An actor ignores an update whose `version` is lower than the last one's. While an update is not
    `is_complete`, as a log with policies cannot be read, the actor deletes nothing.
    """

    version: int = 0
    overrides: Mapping[str, SettingValue] = field(default_factory=dict)
    is_complete: bool = True


NO_POLICIES = PolicyUpdate()
"""Of a topic whose settings are the broker's."""


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """The effective value of a policy; `sources` gives the level of each argument."""

    name: str
    value: PolicyValue
    sources: dict[str, str]


def _single(name: str, setting: str, doc: str, **options: Any) -> Policy:
    return Policy(name, doc, {name: setting}, **options)


_ALL = (
    Policy(
        "retention",
        "how long and how much of what every subscription has consumed is kept",
        {
            "retention_time_in_minutes": "default_retention_time_in_minutes",
            "retention_size_in_mb": "default_retention_size_in_mb",
        },
        wakes=True,
    ),
    Policy(
        "persistence",
        "when a new ledger is started",
        {
            "max_entries_per_ledger": "managed_ledger_max_entries_per_ledger",
            "max_size_per_ledger_mbytes": "managed_ledger_max_size_per_ledger_mbytes",
            "min_ledger_rollover_time_minutes": "managed_ledger_min_ledger_rollover_time_minutes",
            "max_ledger_rollover_time_minutes": "managed_ledger_max_ledger_rollover_time_minutes",
        },
        wakes=True,
    ),
    _single("max_message_size", "max_message_size", "largest payload of one entry after compression, bytes"),
    _single("max_producers", "max_producers_per_topic", "producers of a topic's partition"),
    _single("max_consumers", "max_consumers_per_topic", "consumers of a topic's partition"),
    _single(
        "max_subscriptions_per_topic", "max_subscriptions_per_topic", "subscriptions of a topic's partition"
    ),
    _single(
        "max_consumers_per_subscription", "max_consumers_per_subscription", "consumers of a subscription"
    ),
    _single(
        "max_topics_per_namespace",
        "max_topics_per_namespace",
        "topics of a namespace, partitions counted",
        levels=(NAMESPACE,),
    ),
    _single(
        "max_unacked_messages_per_consumer",
        "max_unacked_messages_per_consumer",
        "unacknowledged messages at which a consumer gets no more",
    ),
    _single(
        "max_unacked_messages_per_subscription",
        "max_unacked_messages_per_subscription",
        "unacknowledged messages at which a subscription's consumers get no more",
    ),
    _single("subscription_types_enabled", "subscription_types_enabled", "types consumers may subscribe with"),
    Policy(
        "publish_rate",
        "how much a second may be published to a topic's partition",
        {
            "publish_throttling_rate_in_msg": "max_publish_rate_per_topic_in_messages",
            "publish_throttling_rate_in_byte": "max_publish_rate_per_topic_in_bytes",
        },
    ),
    Policy(
        "subscription_dispatch_rate",
        "how much a second is delivered to a subscription from a topic's partition",
        {
            "dispatch_throttling_rate_in_msg": "dispatch_throttling_rate_per_subscription_in_msg",
            "dispatch_throttling_rate_in_byte": "dispatch_throttling_rate_per_subscription_in_byte",
        },
    ),
    Policy(
        "auto_topic_creation",
        "whether topics are created at their first use, and which kind",
        {
            "allow_auto_topic_creation": "allow_auto_topic_creation",
            "topic_type": "allow_auto_topic_creation_type",
            "default_num_partitions": "default_num_partitions",
        },
        levels=(NAMESPACE,),
    ),
    _single(
        "auto_subscription_creation",
        "allow_auto_subscription_creation",
        "whether subscriptions are created at their first use",
    ),
    _single(
        "message_ttl",
        "ttl_duration_default_in_seconds",
        "seconds after which messages are acknowledged unseen",
        wakes=True,
    ),
    Policy(
        "backlog_quota",
        "how large and how old a backlog may grow, and what happens then",
        {
            "limit_size": "backlog_quota_default_limit_bytes",
            "limit_time": "backlog_quota_default_limit_second",
            "policy": "backlog_quota_default_retention_policy",
        },
        wakes=True,
    ),
    _single(
        "deduplication",
        "broker_deduplication_enabled",
        "store what a producer sends twice once",
    ),
    Policy(
        "delayed_delivery",
        "whether deliver_at is heeded, how exactly, and how far ahead it may be",
        {
            "active": "delayed_delivery_enabled",
            "tick_time_millis": "delayed_delivery_tick_time_millis",
            "strict": "is_delayed_delivery_deliver_at_time_strict",
            "max_delivery_delay_in_millis": "delayed_delivery_max_delay_in_millis",
        },
    ),
    _single(
        "compaction_threshold",
        "broker_service_compaction_threshold_in_bytes",
        "growth in bytes after which a topic is compacted",
        wakes=True,
    ),
    _single(
        "remote_durability",
        "remote_durability",
        "whether receipts wait for the object store: off, async, sync",
        wakes=True,
    ),
    _single(
        "offload_threshold",
        "managed_ledger_offload_threshold_in_bytes",
        "bytes on the disk beyond which a topic's oldest segments are left to the object store",
        wakes=True,
    ),
    _single(
        "offload_threshold_in_seconds",
        "managed_ledger_offload_threshold_in_seconds",
        "seconds after which closed ledgers are left to the object store",
        wakes=True,
    ),
    _single(
        "offload_deletion_lag",
        "managed_ledger_offload_deletion_lag_ms",
        "milliseconds for which closed ledgers stay on the disk all the same",
        wakes=True,
    ),
    _single(
        "offload_disk_percent",
        "offload_disk_percent",
        "how full the disk may be before the oldest segments are left to the object store",
        wakes=True,
    ),
    _single(
        "schema_compatibility_strategy",
        "schema_compatibility_strategy",
        "how a new version of a schema must fit the others",
    ),
    _single(
        "is_allow_auto_update_schema",
        "is_allow_auto_update_schema_enabled",
        "whether producers register new versions of a schema",
    ),
    _single(
        "schema_validation_enforced",
        "is_schema_validation_enforced",
        "whether producers without a schema are refused on topics that have one",
    ),
    _single(
        "subscription_expiration_time",
        "subscription_expiration_time_minutes",
        "minutes without a consumer after which a subscription is deleted",
        wakes=True,
    ),
    Policy(
        "inactive_topic_policies",
        "whether topics that nobody uses are deleted",
        {
            "delete_while_inactive": "broker_delete_inactive_topics_enabled",
            "inactive_topic_delete_mode": "broker_delete_inactive_topics_mode",
            "max_inactive_duration_seconds": "broker_delete_inactive_topics_max_inactive_duration_seconds",
        },
        wakes=True,
    ),
)
POLICIES: dict[str, Policy] = {policy.name: policy for policy in _ALL}


def find_policy(name: str, level: str) -> Policy:
    """Return a policy by its name.

    Raises InvalidConfiguration with the nearest name, or the right level.
    """
    policy = POLICIES.get(name)
    if policy is None:
        near = difflib.get_close_matches(str(name), POLICIES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(POLICIES)}"
        raise InvalidConfiguration(f"{name!r} is no policy: {hint}")
    if level not in policy.levels:
        raise InvalidConfiguration(
            f"{name} is a policy of a {policy.levels[0]}: it cannot be set for a {level}"
        )
    return policy


def checked_value(name: str, level: str, arguments: Mapping[str, Any]) -> PolicyValue:
    """Return a policy's arguments once each is known and in range.

    Raises InvalidConfiguration, which names the value and the remedy; also if no argument is given.
    """
    policy = find_policy(name, level)
    for argument in arguments:
        if argument not in policy.settings:
            near = difflib.get_close_matches(str(argument), policy.settings, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(policy.settings)}"
            raise InvalidConfiguration(f"the policy {name} has no {argument!r}: {hint}")
    if not arguments:
        raise InvalidConfiguration(f"the policy {name} needs a value: give {', '.join(policy.settings)}")
    return {
        argument: checked(
            setting_field(policy.settings[argument]), value, f" (from the policy {name})", name=argument
        )
        for argument, value in arguments.items()
    }


def given_values(name: str, level: str, texts: Sequence[str]) -> PolicyValue:
    """Return the values of a policy that people wrote as `value`, or as several `name=value`.

    Raises InvalidConfiguration.
    """
    settings = find_policy(name, level).settings
    arguments: PolicyValue = {}
    for text in texts:
        argument, is_named, value = text.partition("=")
        if not is_named:
            if len(settings) > 1 or len(texts) > 1:
                raise InvalidConfiguration(
                    f"{text!r}: give the values of {name} by name, as {next(iter(settings))}=..."
                )
            argument, value = name, text
        if argument not in settings:
            raise InvalidConfiguration(f"the policy {name} has no {argument!r}: it has {', '.join(settings)}")
        arguments[argument] = parsed(setting_field(settings[argument]), value, f" (from {argument})")
    return arguments


def overridden_settings(*levels: Overrides) -> dict[str, SettingValue]:
    """Return the settings that policies override.

    `levels` go from the widest to the narrowest.
    """
    overridden: dict[str, SettingValue] = {}
    for overrides in levels:
        for name, value in overrides.items():
            policy = POLICIES.get(name)
            if policy is not None:
                overridden |= {policy.settings[argument]: set_to for argument, set_to in value.items()}
    return overridden


def sound_overrides(settings: Settings, *levels: Overrides) -> tuple[dict[str, SettingValue], list[str]]:
    """Return the settings to override, without policies that the broker's settings contradict.

    These are returned as texts: the settings were changed after the policies had been checked.
    """
    sound, refused = sound_levels(settings, *levels)
    return overridden_settings(*sound), refused


def sound_levels(settings: Settings, *levels: Overrides) -> tuple[list[Overrides], list[str]]:
    """Return the levels without policies that the broker's settings contradict, and the texts of these."""

    def is_sound(levels: Sequence[Overrides]) -> bool:
        overridden = overridden_settings(*levels)
        try:
            settings.replace(**overridden)
        except InvalidConfiguration:
            return False
        return int(overridden.get("max_message_size", 0)) <= settings.max_message_size

    return _without_contradictions(levels, is_sound)


def consistent_levels(settings: Settings, *levels: Overrides) -> list[Overrides]:
    """Return the levels without policies that `check_together` refuses next to those before them.

    There are some where the settings were changed after the policies had been checked.
    """

    def is_consistent(levels: Sequence[Overrides]) -> bool:
        try:
            check_together(settings, *levels)
        except InvalidConfiguration:
            return False
        return True

    return _without_contradictions(levels, is_consistent)[0]


def _without_contradictions(
    levels: Sequence[Overrides], is_sound: Callable[[Sequence[Overrides]], bool]
) -> tuple[list[Overrides], list[str]]:
    if is_sound(levels):
        return list(levels), []
    kept: list[Overrides] = []
    refused: list[str] = []
    for overrides in levels:
        own: dict[str, PolicyValue] = {}
        for name, value in overrides.items():
            if is_sound([*kept, {**own, name: value}]):
                own[name] = value
            else:
                refused.append(f"{name} {value}")
        kept.append(own)
    return kept, refused


def check_together(settings: Settings, *levels: Overrides) -> None:
    """Raise InvalidConfiguration for policies that contradict each other, or what the broker allows."""
    merged = {name: value for overrides in levels for name, value in overrides.items()}
    overridden = overridden_settings(*levels)
    size = overridden.get("max_message_size", 0)
    if int(size) > settings.max_message_size:
        raise InvalidConfiguration(
            f"max_message_size {size} is more than the broker's {settings.max_message_size}: give no more"
        )
    effective = settings.replace(**overridden)
    minutes, mbytes = effective.default_retention_time_in_minutes, effective.default_retention_size_in_mb
    if "retention" in merged and (minutes == 0) != (mbytes == 0):
        raise InvalidConfiguration(
            f"retention_time_in_minutes {minutes} with retention_size_in_mb {mbytes} keeps nothing: "
            "give 0 for both, or -1 for the one that is without a limit"
        )
    quota = {key: value for overrides in levels for key, value in overrides.get("backlog_quota", {}).items()}
    limit_bytes, limit_s = int(quota.get("limit_size", -1)), int(quota.get("limit_time", -1))
    # -1 keeps everything, 0 keeps only what is not consumed: neither contradicts a quota.
    if 0 < mbytes * 1024 * 1024 < limit_bytes or 0 < minutes * 60 < limit_s:
        raise InvalidConfiguration(
            f"backlog_quota of {limit_bytes} bytes and {limit_s} seconds exceeds the retention of "
            f"{mbytes} MB and {minutes} minutes: raise the retention, or lower the quota"
        )


def applied(
    settings: Settings, namespace: Overrides, topic: Overrides | None = None, *, name: str = ""
) -> list[AppliedPolicy]:
    """Return the effective policies of a namespace or topic with their sources.

    All of them, or one by `name`. Raises InvalidConfiguration for a name that there is not.
    """
    levels: list[tuple[str, Overrides]] = [(NAMESPACE, namespace)]
    if topic is not None:
        levels.append((TOPIC, topic))
    chosen = [find_policy(name, levels[-1][0])] if name else list(POLICIES.values())
    return [_applied(policy, settings, levels) for policy in chosen if levels[-1][0] in policy.levels]


def _applied(policy: Policy, settings: Settings, levels: list[tuple[str, Overrides]]) -> AppliedPolicy:
    value: PolicyValue = {
        argument: getattr(settings, setting) for argument, setting in policy.settings.items()
    }
    sources = dict.fromkeys(value, BROKER)
    for level, overrides in levels:
        for argument, set_to in overrides.get(policy.name, {}).items():
            value[argument] = set_to
            sources[argument] = level
    return AppliedPolicy(policy.name, value, sources)
