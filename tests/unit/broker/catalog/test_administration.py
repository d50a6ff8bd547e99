"""Tenants, namespaces and policies: which hold, which are refused, what a crash or a lost catalog leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.errors import (
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    ServiceUnitNotReady,
    TopicNotFound,
    WrongNode,
)
from pulsar_ray.model.topic_name import TopicName, change_log, change_log_partition, system_change_log
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.broker.catalog.memory_logs import Controller, Died, MemoryLogs

TOPIC = "persistent://public/default/orders"
RETENTION = "retention"
Begin = Callable[..., Controller]


@pytest.fixture
def logs() -> MemoryLogs:
    return MemoryLogs()


@pytest.fixture
def begin(tmp_path: Path, logs: MemoryLogs) -> Iterator[Begin]:
    """Begin another life of the controller; the one before is gone."""
    lives: list[Controller] = []
    clock = ManualClock()

    def begun(**settings: Any) -> Controller:
        if lives:
            lives[-1].close()
        lives.append(Controller(tmp_path / "meta.sqlite", logs, clock, **settings))
        return lives[-1]

    yield begun
    for life in lives:
        life.close()


def rebuilt(path: Path, logs: MemoryLogs, *, has_change_logs: bool = True) -> None:
    """Lose the catalog, and make it anew from the directories that are there."""
    for file in path.parent.glob("meta.sqlite*"):
        file.unlink()
    Catalog.make(path, "cluster", "second", 1 << 32, restored=logs.rows(), has_change_logs=has_change_logs)[
        0
    ].close()


# --- policies ----------------------------------------------------------------------------------------


def test_each_level_overrides_the_one_above_for_each_value_by_itself(begin: Begin) -> None:
    controller = begin(default_retention_time_in_minutes=1, default_retention_size_in_mb=1)
    controller.create("orders", 2)
    assert controller.value(TOPIC, RETENTION) == (
        {"retention_time_in_minutes": 1, "retention_size_in_mb": 1},
        {"retention_time_in_minutes": "broker", "retention_size_in_mb": "broker"},
    )
    controller.set("public/default", RETENTION, retention_time_in_minutes=5)
    controller.set("orders", RETENTION, retention_size_in_mb=7)
    assert controller.value(TOPIC, RETENTION) == (
        {"retention_time_in_minutes": 5, "retention_size_in_mb": 7},
        {"retention_time_in_minutes": "namespace", "retention_size_in_mb": "topic"},
    )
    assert controller.value("public/default", RETENTION)[0]["retention_size_in_mb"] == 1
    assert controller.topics.policies.update_for(TOPIC).overrides == {
        "default_retention_time_in_minutes": 5,
        "default_retention_size_in_mb": 7,
    }
    controller.run(controller.calls.remove_policy(f"{TOPIC}-partition-1", RETENTION))
    assert controller.value(TOPIC, RETENTION)[1]["retention_size_in_mb"] == "broker"
    assert controller.told == ["public/default", TOPIC, TOPIC]


def test_versions_rise_with_each_change_whatever_the_clock_does(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")
    versions = []
    for minutes in (1, 2, 3, 3, 4):
        controller.set(TOPIC, RETENTION, retention_time_in_minutes=minutes, retention_size_in_mb=-1)
        versions.append(controller.topics.policies.update_for(TOPIC).version)
    assert versions[2] == versions[3], "nothing was changed"
    assert sorted({*versions}) == [*versions[:3], versions[4]]


def test_policies_hold_after_a_restart_and_are_read_from_no_log(begin: Begin, logs: MemoryLogs) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("public/default", "max_producers", max_producers=3)
    controller.set("orders", "max_producers", max_producers=4)
    logs.away |= set(logs.messages)
    again = begin()
    assert again.value("orders", "max_producers") == ({"max_producers": 4}, {"max_producers": "topic"})
    assert again.topics.policies.is_complete(TOPIC)
    assert again.topics.policies.update_for(TOPIC) == controller_update(again)


def test_permissions_hold_after_a_restart_and_are_read_from_the_logs(
    begin: Begin, logs: MemoryLogs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("public/default", RETENTION, retention_time_in_minutes=5, retention_size_in_mb=7)
    calls = controller.calls
    controller.run(calls.grant_permission("public/default", "ann", ["consume", "produce"]))
    controller.run(calls.grant_permission(TOPIC, "bob", ["consume"]))
    controller.run(calls.grant_subscription_permission("public/default", "s", ["ann", "a, b"]))
    controller.run(calls.update_tenant("public", {"admin_roles": ["lead"]}))
    expected = {
        "admin_roles": ["lead"],
        "namespace": {"ann": ["produce", "consume"]},
        "topic": {"bob": ["consume"]},
        "subscriptions": {"s": ["a, b", "ann"]},
    }
    assert controller.run(controller.calls.grants(f"{TOPIC}-partition-0"))["topic"] == {}
    assert controller.run(controller.calls.grants(TOPIC)) == expected
    controller = begin()
    assert controller.run(controller.calls.grants(TOPIC)) == expected
    controller.close()
    rebuilt(tmp_path / "meta.sqlite", logs)
    controller = begin()
    assert controller.run(controller.calls.grants(TOPIC)) == expected
    assert controller.value("public/default", RETENTION)[0]["retention_size_in_mb"] == 7
    assert "left out" not in caplog.text
    for gone in ("nowhere", "no/where", "persistent://no/where/t"):
        found = controller.run(controller.calls.grants(gone))
        assert not any(found.values())


def controller_update(controller: Controller) -> Any:
    return controller.topics.policies.update_for(TOPIC)


@pytest.mark.parametrize(
    ("subject", "name", "value", "error", "text"),
    [
        ("public/default", "retentoin", {}, InvalidConfiguration, "did you mean retention"),
        ("public/default", RETENTION, {"minutes": 1}, InvalidConfiguration, "has no 'minutes'"),
        ("public/default", RETENTION, {"retention_size_in_mb": -2}, InvalidConfiguration, "at least -1"),
        ("public/default", RETENTION, {"retention_size_in_mb": 5}, InvalidConfiguration, "keeps nothing"),
        (
            "orders",
            "max_topics_per_namespace",
            {"max_topics_per_namespace": 1},
            InvalidConfiguration,
            "of a n",
        ),
        (
            "public/defualt",
            "max_producers",
            {"max_producers": 1},
            TopicNotFound,
            "did you mean public/default",
        ),
        ("publik/x", "max_producers", {"max_producers": 1}, TopicNotFound, "Tenant does not.* mean public"),
        ("nothing", "max_producers", {"max_producers": 1}, TopicNotFound, "nothing does not exist; create"),
        ("ordrs", "max_producers", {"max_producers": 1}, TopicNotFound, "did you mean persistent:.*/orders"),
        ("orders-partition-0", "max_producers", {"max_producers": 1}, TopicNotFound, "mean per.*/orders"),
        ("parts-partition-2", "max_producers", {"max_producers": 1}, TopicNotFound, "parts has 2 partitions"),
        ("pulsar/system", "max_producers", {"max_producers": 1}, NotAllowedError, "the broker's own"),
        ("__change_events", "max_producers", {"max_producers": 1}, NotAllowedError, "a system topic"),
        ("a/../b", "max_producers", {"max_producers": 1}, TopicNotFound, "Tenant does not exist: 'a'"),
        ("../..", "max_producers", {"max_producers": 1}, InvalidTopicName, "not a namespace"),
        (7, "max_producers", {"max_producers": 1}, InvalidConfiguration, "neither a namespace nor a topic"),
    ],
)
def test_policies_that_cannot_be_are_refused(
    begin: Begin, logs: MemoryLogs, subject: str, name: str, value: dict[str, Any], error: Any, text: str
) -> None:
    controller = begin()
    controller.create("orders")
    controller.create("parts", 2)
    with pytest.raises(error, match=text):
        controller.run(controller.calls.set_policy(subject, name, value))
    assert not logs.messages


def test_a_namespace_gets_no_policy_that_contradicts_one_of_its_topics(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "persistence", min_ledger_rollover_time_minutes=200)
    with pytest.raises(InvalidConfiguration, match="policies of persistent://public/default/orders"):
        controller.set("public/default", "persistence", max_ledger_rollover_time_minutes=100)
    controller.set("public/default", "persistence", max_ledger_rollover_time_minutes=200)


def test_policies_that_a_changed_setting_contradicts_do_not_hold_and_harm_no_other(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("public/default", "max_message_size", max_message_size=4_000_000)
    controller.set("public/default", "max_producers", max_producers=2)
    again = begin(max_message_size=1_000_000)
    assert again.topics.policies.update_for(TOPIC).overrides == {"max_producers_per_topic": 2}


def test_a_policy_that_a_changed_setting_contradicts_is_not_shown_and_stands_in_no_others_way(
    begin: Begin,
) -> None:
    controller = begin()
    controller.create("orders")
    size, producers = "max_message_size", "max_producers"
    controller.set("public/default", size, max_message_size=4_000_000)
    controller.set("orders", size, max_message_size=3_000_000)
    again = begin(max_message_size=1_000_000)
    for subject in ("public/default", TOPIC):
        assert again.value(subject, size) == ({size: 1_000_000}, {size: "broker"})
        again.set(subject, producers, max_producers=2)
        assert again.value(subject, producers)[0] == {producers: 2}
    with pytest.raises(InvalidConfiguration, match="more than the broker's 1000000"):
        again.set("public/default", size, max_message_size=2_000_000)
    again.set("orders", size, max_message_size=500_000)
    assert again.value(TOPIC, size) == ({size: 500_000}, {size: "topic"})


def test_the_policies_shown_of_a_system_topic_are_those_that_hold(begin: Begin) -> None:
    controller = begin(default_retention_time_in_minutes=5, default_retention_size_in_mb=5)
    controller.set("public/default", "max_consumers", max_consumers=2)
    (log,) = {change_log_partition("public/default", "public/default").partitioned_full}
    kept = {"retention_time_in_minutes": -1, "retention_size_in_mb": -1}
    assert controller.value(log, RETENTION) == (kept, dict.fromkeys(kept, "broker"))
    assert controller.value(log, "max_consumers")[0] == {"max_consumers": 0}


def test_topics_have_no_policies_where_the_broker_has_none(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=2)
    again = begin(topic_level_policies_enabled=False)
    with pytest.raises(NotAllowedError, match="topic_level_policies_enabled"):
        again.set("orders", "max_producers", max_producers=3)
    assert again.value("orders", "max_producers")[1] == {"max_producers": "broker"}


def test_a_non_persistent_topic_has_policies_while_it_is_known(begin: Begin) -> None:
    controller = begin()
    topic = "non-persistent://public/default/n"
    controller.create(topic)
    controller.set(topic, "max_producers", max_producers=2)
    assert controller.topics.policies.update_for(topic).overrides == {"max_producers_per_topic": 2}
    with pytest.raises(TopicNotFound):
        begin().set(topic, "max_producers", max_producers=3)


def test_a_deleted_topic_leaves_no_policies_behind(begin: Begin, logs: MemoryLogs, tmp_path: Path) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=2)
    controller.run(controller.ending.delete_topic(TOPIC, False))
    controller.create("orders")
    assert controller.value("orders", "max_producers")[1] == {"max_producers": "broker"}
    controller.close()
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    again.create("orders")
    assert again.value("orders", "max_producers")[1] == {"max_producers": "broker"}


def test_a_policy_that_is_set_while_its_topic_is_deleted_does_not_outlive_it(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")

    async def crossing() -> None:
        controller.gate = asyncio.Event()
        setting = asyncio.ensure_future(
            controller.calls.set_policy("orders", "max_producers", {"max_producers": 2})
        )
        await asyncio.sleep(0)
        deleting = asyncio.ensure_future(controller.ending.delete_topic(TOPIC, False))
        await asyncio.sleep(0)
        controller.gate.set()
        await asyncio.gather(setting, deleting)

    asyncio.run(crossing())
    controller.gate = None
    controller.create("orders")
    assert controller.value("orders", "max_producers")[1] == {"max_producers": "broker"}


# --- durability --------------------------------------------------------------------------------------


def test_a_change_that_was_appended_holds_although_the_controller_died(
    begin: Begin, logs: MemoryLogs
) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=1)
    logs.die_after_append = True
    with pytest.raises(Died):
        controller.set("orders", "max_producers", max_producers=2)
    assert controller.value("orders", "max_producers")[0] == {"max_producers": 1}
    version = controller_update(controller).version
    logs.die_after_append = False
    again = begin()
    assert again.value("orders", "max_producers")[0] == {"max_producers": 2}
    assert controller_update(again).version > version


def test_a_change_that_was_not_appended_is_none(begin: Begin, logs: MemoryLogs) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=1)
    logs.die_before_append = True
    with pytest.raises(Died):
        controller.set("orders", "max_producers", max_producers=2)
    logs.die_before_append = False
    again = begin()
    assert again.value("orders", "max_producers")[0] == {"max_producers": 1}
    again.set("orders", "max_producers", max_producers=3)
    assert begin().value("orders", "max_producers")[0] == {"max_producers": 3}


def test_a_change_whose_answer_was_lost_holds_with_the_next_one(begin: Begin, logs: MemoryLogs) -> None:
    """The controller lives on: it does not know whether the partition has stored the message."""
    controller = begin()
    controller.create("orders")
    logs.die_after_append = True
    with pytest.raises(Died):
        controller.run(controller.calls.create_tenant("acme", {}))
    logs.die_after_append = False
    with pytest.raises(NotAllowedError, match="already exists"):
        controller.run(controller.calls.create_tenant("acme", {}))
    assert controller.run(controller.calls.tenants()) == ["acme", "public", "pulsar"]


def test_policies_that_are_found_late_are_newer_than_what_was_told_since(
    begin: Begin, logs: MemoryLogs
) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=1)
    logs.die_after_append = True
    with pytest.raises(Died):
        controller.set("orders", "max_producers", max_producers=2)
    logs.die_after_append = False
    controller.set("public/default", "max_consumers", max_consumers=3)
    before = controller_update(controller)
    controller.run(controller.logs.catch_up())
    after = controller_update(controller)
    assert after.overrides != before.overrides
    assert after.version > before.version


def test_an_append_that_comes_late_changes_nothing_that_was_changed_since(
    begin: Begin, logs: MemoryLogs, tmp_path: Path
) -> None:
    """The controller gave up waiting for a partition that was frozen, and that stored the messages then."""
    controller = begin()
    calls = controller.calls
    controller.create("orders")
    controller.run(calls.create_tenant("acme", {}))
    controller.run(calls.create_namespace("acme/a", {}))
    controller.set("orders", "max_producers", max_producers=1)
    log, system = change_log_partition("public/default", TOPIC).full, system_change_log().full
    lengths = {name: len(messages) for name, messages in logs.messages.items()}
    logs.die_after_append = True
    for call in (
        calls.set_policy(TOPIC, "max_producers", {"max_producers": 2}),
        calls.delete_namespace("acme/a", False),
    ):
        with pytest.raises(Died):
            controller.run(call)
    logs.die_after_append = False
    late = {name: logs.messages[name].pop(lengths[name]) for name in (log, system)}
    controller.set("orders", "max_producers", max_producers=3)
    controller.run(calls.delete_namespace("acme/a", False))
    controller.run(calls.create_namespace("acme/a", {}))
    for name, message in late.items():
        logs.messages[name].append(message)
    controller.set("orders", "max_consumers", max_consumers=4)
    controller.run(calls.update_tenant("acme", {"admin_roles": ["boss"]}))
    before = described(controller)
    assert before["policies"][TOPIC] == {
        "max_producers": {"max_producers": 3},
        "max_consumers": {"max_consumers": 4},
    }
    assert before["namespaces"][0] == ["acme/a"]
    controller.close()
    rebuilt(tmp_path / "meta.sqlite", logs)
    assert described(begin()) == before


def test_a_late_append_of_another_subject_is_not_passed_over(begin: Begin, logs: MemoryLogs) -> None:
    controller = begin()
    controller.run(controller.calls.create_tenant("acme", {}))
    logs.die_after_append = True
    with pytest.raises(Died):
        controller.run(controller.calls.create_tenant("late", {}))
    logs.die_after_append = False
    late = logs.messages[system_change_log().full].pop()
    controller.run(controller.calls.update_tenant("acme", {"admin_roles": ["boss"]}))
    logs.messages[system_change_log().full].append(late)
    controller.run(controller.calls.update_tenant("acme", {"admin_roles": []}))
    assert controller.run(controller.calls.tenants()) == ["acme", "late", "public", "pulsar"]


def test_policies_in_the_log_of_a_former_namespace_are_not_those_of_its_successor(
    begin: Begin, logs: MemoryLogs, tmp_path: Path
) -> None:
    """A store was away when the namespace was deleted, and came back when the catalog was lost."""
    controller = begin()
    calls = controller.calls
    controller.run(calls.create_tenant("acme", {}))
    controller.run(calls.create_namespace("acme/a", {"max_consumers": {"max_consumers": 3}}))
    controller.create("acme/a/t")
    controller.set("acme/a/t", "max_producers", max_producers=1)
    controller.set("acme/a", "max_producers", max_producers=2)
    left = {name: list(messages) for name, messages in logs.messages.items() if "acme/a/" in name}
    assert left
    controller.run(calls.delete_namespace("acme/a", True))
    controller.run(calls.create_namespace("acme/a", {}))
    controller.close()
    logs.messages |= left
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    again.create("acme/a/t")
    assert again.catalog.policies.overrides("acme/a") == {}
    assert again.catalog.policies.overrides("persistent://acme/a/t") == {}


def test_while_a_log_cannot_be_read_nothing_is_deleted(begin: Begin, logs: MemoryLogs) -> None:
    controller = begin()
    controller.create("orders")
    controller.create("other")
    controller.set("orders", "max_producers", max_producers=1)
    logs.die_after_append = True
    with pytest.raises(Died):
        controller.set("orders", RETENTION, retention_time_in_minutes=-1, retention_size_in_mb=-1)
    logs.die_after_append = False
    partition = change_log_partition("public/default", TOPIC).full
    logs.away.add(partition)
    again = begin()
    update = controller_update(again)
    assert not update.is_complete
    with pytest.raises(WrongNode):
        again.value("orders", RETENTION)
    logs.away.clear()
    assert again.catalog.change_logs.unknown == {partition}
    again.run(again.logs.catch_up())
    assert again.catalog.change_logs.unknown == set()
    later = controller_update(again)
    assert later.is_complete
    assert later.version > update.version
    assert later.overrides["default_retention_size_in_mb"] == -1


def fill(controller: Controller) -> None:
    controller.create("orders", 3)
    controller.run(controller.calls.create_tenant("acme", {"admin_roles": ["boss"]}))
    controller.run(controller.calls.create_tenant("gone", {}))
    controller.run(controller.calls.create_namespace("gone/x", {}))
    controller.run(controller.calls.delete_tenant("gone", True))
    for name in ("acme/a", "acme/b", "acme/c"):
        controller.run(controller.calls.create_namespace(name, {"max_producers": {"max_producers": 5}}))
        controller.create(f"{name}/t")
    controller.set("acme/b", "max_producers", max_producers=6)
    controller.set("acme/b/t", "max_consumers", max_consumers=7)
    controller.run(controller.calls.delete_namespace("acme/c", True))
    controller.run(controller.calls.create_namespace("acme/c", {}))
    for minutes in range(5):
        controller.set("orders", RETENTION, retention_time_in_minutes=minutes + 1, retention_size_in_mb=-1)


def described(controller: Controller) -> dict[str, Any]:
    tenants = controller.run(controller.calls.tenants())
    return {
        "tenants": {name: controller.run(controller.calls.tenant(name)) for name in tenants},
        "namespaces": [controller.run(controller.calls.namespaces(name)) for name in tenants],
        "policies": {
            subject: controller.catalog.policies.overrides(subject)
            for subject in ("public/default", "acme/a", "acme/b", "acme/c", TOPIC, "persistent://acme/b/t")
        },
    }


def test_a_lost_catalog_has_all_of_it_again(begin: Begin, logs: MemoryLogs, tmp_path: Path) -> None:
    controller = begin()
    fill(controller)
    before = described(controller)
    assert before["namespaces"][0] == ["acme/a", "acme/b", "acme/c"]
    last = controller.catalog.policies.next_version(0)
    controller.close()
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    assert described(again) == before
    assert again.catalog.policies.next_version(0) > last
    again.create("acme/a/t")
    again.set("acme/a/t", "max_producers", max_producers=9)
    assert described(begin()) == before


def test_a_lost_catalog_deletes_nothing_while_a_log_is_away(
    begin: Begin, logs: MemoryLogs, tmp_path: Path
) -> None:
    controller = begin()
    fill(controller)
    before = described(controller)
    controller.close()
    away = change_log_partition("acme/b", "acme/b").full
    logs.away.add(away)
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    assert not again.topics.policies.is_complete("persistent://acme/b/t")
    assert again.topics.policies.is_complete("persistent://acme/a/t")
    assert again.topics.policies.is_complete(TOPIC)
    with pytest.raises(WrongNode):
        again.set("acme/b", "max_producers", max_producers=1)
    logs.away.clear()
    again.close()
    rebuilt(tmp_path / "meta.sqlite", logs)
    assert described(begin()) == before


def test_a_lost_catalog_without_the_log_of_the_cluster_deletes_nothing_at_all(
    begin: Begin, logs: MemoryLogs, tmp_path: Path
) -> None:
    fill(begin())
    logs.away.add(system_change_log().full)
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    assert not again.topics.policies.is_complete(TOPIC)
    assert not again.topics.policies.is_complete("persistent://public/default/never-seen")
    with pytest.raises(WrongNode):
        again.run(again.calls.tenants())
    with pytest.raises(ServiceUnitNotReady, match="has not been read"):
        again.create("acme/a/t")


def test_a_lost_catalog_of_a_cluster_without_logs_is_complete(
    begin: Begin, logs: MemoryLogs, tmp_path: Path
) -> None:
    begin().create("orders")
    rebuilt(tmp_path / "meta.sqlite", logs, has_change_logs=False)
    assert begin().topics.policies.is_complete(TOPIC)


def test_damaged_and_foreign_records_are_reported_and_the_rest_holds(
    begin: Begin, logs: MemoryLogs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    controller = begin()
    fill(controller)
    before = described(controller)
    controller.close()
    for messages in logs.messages.values():
        good = json.loads(messages[0])
        bad = [
            "file is corrupt at byte 17",
            b"no json",
            b"[]",
            b"[" * 100_000,
            json.dumps({**good, "version": "7"}).encode(),
            json.dumps({**good, "eventType": "LATER"}).encode(),
            json.dumps({**good, "tenant": "..", "version": 2**60}).encode(),
            json.dumps({**good, "tenant": None}).encode(),
            json.dumps({**good, "policies": {"retention": 3}, "version": 2**60}).encode(),
        ]
        messages[:0] = bad
    rebuilt(tmp_path / "meta.sqlite", logs)
    with caplog.at_level(logging.WARNING):
        assert described(begin()) == before
    assert "file is corrupt at byte 17" in caplog.text
    assert "7:0 of persistent://pulsar/system/__change_events" in caplog.text


def test_a_policy_of_a_later_version_is_left_out_alone(
    begin: Begin, logs: MemoryLogs, tmp_path: Path
) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=2)
    controller.close()
    (messages,) = (
        messages for name, messages in logs.messages.items() if name.startswith("persistent://public")
    )
    event = json.loads(messages[0])
    event["policies"] |= {"teleport": {"far": 1}, "max_consumers": {"max_consumers": -5}}
    messages[0] = json.dumps(event).encode()
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    again.create("orders")
    assert again.catalog.policies.overrides(TOPIC) == {"max_producers": {"max_producers": 2}}


def test_a_catalog_that_was_put_back_from_a_copy_learns_the_rest_with_the_next_change(
    begin: Begin, logs: MemoryLogs, tmp_path: Path
) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=2)
    controller.close()
    copy = (tmp_path / "meta.sqlite").read_bytes()
    later = begin()
    later.set("orders", "max_consumers", max_consumers=3)
    later.close()
    (tmp_path / "meta.sqlite").write_bytes(copy)
    again = begin()
    again.set("orders", "max_producers", max_producers=4)
    assert again.catalog.policies.overrides(TOPIC) == {
        "max_producers": {"max_producers": 4},
        "max_consumers": {"max_consumers": 3},
    }


def test_a_change_whose_answer_was_lost_may_be_asked_for_again(begin: Begin, logs: MemoryLogs) -> None:
    """The controller dies behind the catalog's commit, and the administrator repeats the call."""
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=2)
    written = sum(map(len, logs.messages.values()))
    again = begin()
    again.set("orders", "max_producers", max_producers=2)
    again.run(again.calls.remove_policy("orders", "max_consumers"))
    assert sum(map(len, logs.messages.values())) == written
    assert again.told == [TOPIC, TOPIC], "actors may not have been told before the controller died"


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_log_that_is_lost_for_good_can_be_given_up(
    begin: Begin, logs: MemoryLogs, tmp_path: Path, is_rebuilt: bool
) -> None:
    controller = begin()
    fill(controller)
    before = described(controller)
    controller.close()
    lost = [system_change_log().full, change_log_partition("acme/b", "acme/b").full]
    logs.away |= set(lost)
    if is_rebuilt:
        rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    with pytest.raises(WrongNode):
        again.set("acme/b", "max_producers", max_producers=1)
    assert again.run(again.calls.abandon_change_logs("public/default")) == []
    assert again.run(again.calls.abandon_change_logs("pulsar/system")) == lost[:1]
    assert again.run(again.calls.abandon_change_logs("acme/b")) == ([] if is_rebuilt else lost[1:])
    assert again.topics.policies.is_complete("persistent://acme/b/t")
    again.set("acme/b", "max_producers", max_producers=1)
    before["policies"]["acme/b"] = {"max_producers": {"max_producers": 1}}
    if is_rebuilt:
        assert again.run(again.calls.namespaces("acme")) == ["acme/b"], "others stood in the lost log alone"
    else:
        assert described(again) == before
        again.close()
        rebuilt(tmp_path / "meta.sqlite", logs)
        assert described(begin()) == before


# --- tenants and namespaces --------------------------------------------------------------------------


def test_a_tenant_is_kept_as_it_was_given(begin: Begin) -> None:
    controller = begin()
    info = {"admin_roles": ["a", "b"], "allowed_clusters": ["c"]}
    controller.run(controller.calls.create_tenant("acme", info))
    assert controller.run(controller.calls.tenant("acme")) == info
    controller.run(controller.calls.update_tenant("acme", {"admin_roles": []}))
    again = begin()
    assert again.run(again.calls.tenant("acme")) == {**info, "admin_roles": []}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 600, "a\0", "persistent://a"])
def test_a_bad_name_is_none_of_a_tenant_or_namespace(begin: Begin, name: Any) -> None:
    controller = begin()
    with pytest.raises(InvalidConfiguration, match="cannot be a tenant"):
        controller.run(controller.calls.create_tenant(name, {}))
    with pytest.raises(InvalidTopicName, match="is not a namespace"):
        controller.run(controller.calls.create_namespace(f"a/{name}", {}))


def test_missing_and_existing_ones_are_errors(begin: Begin) -> None:
    controller = begin()
    calls = controller.calls
    controller.run(calls.create_tenant("acme", {}))
    controller.run(calls.create_namespace("acme/a", None))
    for call, error, text in (
        (calls.create_tenant("acme", {}), NotAllowedError, "Tenant already exists: acme"),
        (calls.create_tenant("b", {"roles": []}), InvalidConfiguration, "has no 'roles'"),
        (calls.create_tenant("b", {"admin_roles": "x"}), InvalidConfiguration, "a list of texts"),
        (calls.update_tenant("acne", {}), TopicNotFound, "Tenant does not exist: 'acne'; did you mean acme"),
        (calls.tenant("acne"), TopicNotFound, "did you mean acme"),
        (calls.delete_tenant("acne", False), TopicNotFound, "did you mean acme"),
        (calls.namespaces("acne"), TopicNotFound, "did you mean acme"),
        (calls.create_namespace("acne/a", None), TopicNotFound, "Tenant does not exist"),
        (calls.create_namespace("acme/a", None), NotAllowedError, "Namespace already exists"),
        (calls.create_namespace("acme/b", {"x": {}}), InvalidConfiguration, "'x' is no policy"),
        (calls.delete_namespace("acme/b", False), TopicNotFound, "Namespace not found: 'acme/b'"),
        (calls.delete_namespace("public/default", True), NotAllowedError, "part of every cluster"),
        (calls.delete_namespace("pulsar/system", True), NotAllowedError, "part of every cluster"),
        (calls.delete_tenant("public", True), NotAllowedError, "part of every cluster"),
        (calls.delete_tenant("pulsar", True), NotAllowedError, "part of every cluster"),
        (calls.delete_tenant("acme", False), NotAllowedError, "still has active namespaces.*or force"),
    ):
        with pytest.raises(error, match=text):
            controller.run(call)


def test_a_deletion_takes_everything_with_it_if_forced(begin: Begin, logs: MemoryLogs) -> None:
    controller = begin()
    calls = controller.calls
    controller.run(calls.create_tenant("acme", {}))
    controller.run(calls.create_namespace("acme/a", None))
    controller.create("acme/a/t", 2)
    controller.create("non-persistent://acme/a/n")
    controller.set("acme/a/t", "max_producers", max_producers=1)
    with pytest.raises(NotAllowedError, match="Cannot delete non empty namespace: acme/a has 2 topics"):
        controller.run(calls.delete_namespace("acme/a", False))
    controller.run(calls.delete_tenant("acme", True))
    assert controller.run(calls.tenants()) == ["public", "pulsar"]
    assert set(controller.removed) >= {"persistent://acme/a/t-partition-0", "non-persistent://acme/a/n"}
    assert set(logs.messages) == {system_change_log().full}
    controller.run(calls.create_tenant("acme", {}))
    controller.run(calls.create_namespace("acme/a", None))
    assert controller.topics.topics("acme/a", include_system=True) == []
    controller.create("acme/a/t")
    assert controller.value("acme/a/t", "max_producers")[1] == {"max_producers": "broker"}


def test_a_namespace_that_is_being_deleted_takes_no_topic(begin: Begin) -> None:
    controller = begin()
    controller.run(controller.calls.create_tenant("acme", {}))
    controller.run(controller.calls.create_namespace("acme/a", None))
    controller.catalog.tenants.leaving.add("acme/a")
    with pytest.raises(TopicNotFound, match="is being deleted"):
        controller.create("acme/a/t")


# --- what the controller itself heeds ----------------------------------------------------------------


def test_new_topics_heed_the_policies_of_their_namespace(begin: Begin) -> None:
    controller = begin()
    topics = controller.topics

    def use(topic: str) -> int:
        return len(topics.resolve(TopicName.parse(topic), create=True, stores=lambda: ["store"]))

    controller.set(
        "public/default", "auto_topic_creation", topic_type="partitioned", default_num_partitions=3
    )
    assert use("a") == 3
    controller.set("public/default", "auto_topic_creation", allow_auto_topic_creation=False)
    with pytest.raises(TopicNotFound):
        use("b")
    controller.set("public/default", "max_topics_per_namespace", max_topics_per_namespace=5)
    controller.create("c")
    with pytest.raises(NotAllowedError, match=r"Exceed maximum number of topics in namespace\."):
        controller.create("d", 2)
    with pytest.raises(NotAllowedError, match=r"has 4 of 5.*would add 2"):
        topics.prepare_partitions(TopicName.parse("a"), 5, lambda: ["store"])
    controller.create("non-persistent://public/default/d")
    with pytest.raises(NotAllowedError, match="Exceed maximum"):
        controller.create("non-persistent://public/default/e")
    controller.run(controller.calls.remove_policy("public/default", "max_topics_per_namespace"))
    controller.create("e")


def test_system_topics_are_hidden_and_only_the_brokers(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")
    controller.set("orders", "max_producers", max_producers=1)
    log = change_log("public/default")
    assert controller.topics.topics("public/default") == [(TOPIC, 0)]
    assert controller.topics.topics("public/default", include_system=True) == [(log.full, 4), (TOPIC, 0)]
    for topic in ("__change_events", "__transaction_buffer_snapshot", "t__transaction_pending_ack"):
        with pytest.raises(NotAllowedError, match="is a system topic"):
            controller.create(topic)
    with pytest.raises(NotAllowedError, match="is a system topic"):
        controller.run(controller.ending.delete_topic(log.full, True))
    with pytest.raises(NotAllowedError, match="is a system topic"):
        controller.topics.prepare_partitions(log, 8, lambda: ["store"])
    with pytest.raises(TopicNotFound, match="had no use for it yet"):
        controller.topics.resolve(TopicName.parse("pulsar/system/x"), create=True, stores=lambda: ["store"])
    update = controller.topics.policies.update_for(log.full)
    assert update.overrides["default_retention_time_in_minutes"] == -1
