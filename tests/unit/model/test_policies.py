from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.policies import (
    BROKER,
    NAMESPACE,
    POLICIES,
    TOPIC,
    PolicyValue,
    applied,
    check_together,
    checked_value,
    find_policy,
    overridden_settings,
)

SETTINGS = Settings(max_unacked_messages_per_consumer=7, default_retention_time_in_minutes=3)


def of(name: str, topic: dict[str, Any] | None = None, namespace: dict[str, Any] | None = None) -> Any:
    (result,) = applied(
        SETTINGS, {name: namespace} if namespace else {}, {name: topic} if topic else {}, name=name
    )
    return result


def test_a_topics_value_goes_before_its_namespaces_and_that_before_the_brokers() -> None:
    name = "max_unacked_messages_per_consumer"
    assert (of(name).value, of(name).sources) == ({name: 7}, {name: BROKER})
    above = of(name, namespace={name: 5})
    assert (above.value, above.sources) == ({name: 5}, {name: NAMESPACE})
    both = of(name, topic={name: 0}, namespace={name: 5})
    assert (both.value, both.sources) == ({name: 0}, {name: TOPIC})


def test_each_argument_of_a_policy_goes_its_own_way_through_the_levels() -> None:
    policy = of(
        "persistence",
        topic={"max_entries_per_ledger": 10},
        namespace={"max_entries_per_ledger": 20, "max_size_per_ledger_mbytes": 1},
    )
    assert policy.value["max_entries_per_ledger"] == 10
    assert policy.value["max_size_per_ledger_mbytes"] == 1
    assert (
        policy.value["max_ledger_rollover_time_minutes"]
        == SETTINGS.managed_ledger_max_ledger_rollover_time_minutes
    )
    assert set(policy.sources.values()) == {TOPIC, NAMESPACE, BROKER}


def test_overridden_settings_are_those_of_policies_in_force_only() -> None:
    namespace: dict[str, PolicyValue] = {
        "retention": {"retention_time_in_minutes": 5, "retention_size_in_mb": -1},
        "message_ttl": {"message_ttl": 60},
        "compaction_threshold": {"compaction_threshold": 60},
    }
    topic: dict[str, PolicyValue] = {"retention": {"retention_size_in_mb": 9}}
    settings = SETTINGS.replace(**overridden_settings(namespace, topic))
    assert settings.default_retention_time_in_minutes == 5
    assert settings.default_retention_size_in_mb == 9
    assert settings.ttl_duration_default_in_seconds == 60
    assert settings.broker_service_compaction_threshold_in_bytes == 60


def test_every_policy_overrides_settings_and_no_setting_belongs_to_two() -> None:
    names = [name for policy in POLICIES.values() for name in policy.settings.values()]
    assert len(names) == len(set(names))
    assert set(names) <= {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize(
    ("name", "level", "arguments", "says"),
    [
        ("retentoin", TOPIC, {}, "did you mean retention?"),
        ("auto_topic_creation", TOPIC, {"topic_type": "partitioned"}, "a policy of a namespace"),
        ("retention", TOPIC, {"retention_time": 1}, "did you mean retention_time_in_minutes?"),
        ("retention", TOPIC, {"retention_time_in_minutes": -2}, "at least -1"),
        ("max_consumers", NAMESPACE, {"max_consumers": "3"}, "a str: give an integer"),
        ("max_consumers", NAMESPACE, {"max_consumers": True}, "a bool: give an integer"),
        ("max_consumers", NAMESPACE, {}, "needs a value: give max_consumers"),
    ],
)
def test_bad_values_are_refused_with_the_remedy(
    name: str, level: str, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=says.replace("?", r"\?")):
        checked_value(name, level, arguments)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"retention": {"retention_time_in_minutes": 10, "retention_size_in_mb": 0}}, "keeps nothing"),
        ({"max_message_size": {"max_message_size": 6 * 1024 * 1024}}, "more than the broker's"),
        (
            {"persistence": {"min_ledger_rollover_time_minutes": 9, "max_ledger_rollover_time_minutes": 8}},
            "give at most",
        ),
        ({"subscription_types_enabled": {"subscription_types_enabled": "Shared,Keyshared"}}, "'Keyshared'"),
        (
            {
                "retention": {"retention_time_in_minutes": -1, "retention_size_in_mb": 1},
                "backlog_quota": {"limit_size": 2 * 1024 * 1024},
            },
            "exceeds the retention",
        ),
    ],
)
def test_policies_that_contradict_each_other_are_refused(overrides: Any, says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        check_together(Settings(), {}, overrides)
    with pytest.raises(InvalidConfiguration, match=says):
        check_together(Settings(), overrides)


def test_a_policy_knows_its_levels() -> None:
    assert find_policy("retention", TOPIC).levels == (NAMESPACE, TOPIC)
    assert find_policy("max_topics_per_namespace", NAMESPACE).levels == (NAMESPACE,)


def test_a_value_out_of_range_is_refused_under_the_name_that_it_was_given() -> None:
    with pytest.raises(
        InvalidConfiguration, match=r": max_producers \(from the policy max_producers\) is -5"
    ):
        checked_value("max_producers", TOPIC, {"max_producers": -5})
