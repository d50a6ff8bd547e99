"""Versions of schemas: one for each content, durable, there again after a lost catalog."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.catalog.schemas import schema_registry
from pulsar_ray.errors import CorruptData, IncompatibleSchema, NotAllowedError, TopicNotFound, WrongNode
from pulsar_ray.model.topic_name import TopicName, change_log_partition
from pulsar_ray.session.requests import NO_SCHEMA
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.broker.catalog.memory_logs import Controller, Died, MemoryLogs
from tests.unit.broker.catalog.test_administration import rebuilt

TOPIC = "persistent://public/default/orders"
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


def fields(*names: str, kind: str = "AVRO", default: bool = True, **more: Any) -> dict[str, Any]:
    """A record with int fields."""
    described = [{"name": name, "type": "int", **({"default": 0} if default else {})} for name in names]
    definition = {"type": "record", "name": "R", "fields": described, **more}
    return {"type": kind, "text": json.dumps(definition), "properties": {}}


def register(controller: Controller, schema: dict[str, Any], topic: str = TOPIC, by: str = "p") -> int:
    return controller.run(controller.schemas.register(topic, schema, by))


def listed(controller: Controller, topic: str = TOPIC) -> list[int]:
    return [each["version"] for each in controller.run(controller.schemas.versions(topic))]


def log_of(topic: str = TOPIC) -> str:
    return change_log_partition("public/default", topic).full


def test_one_version_for_each_content(begin: Begin) -> None:
    controller = begin()
    controller.create("orders", 2)
    assert register(controller, fields("a")) == 0
    assert register(controller, fields("a", "b")) == 1
    assert register(controller, fields("a", doc="words"), f"{TOPIC}-partition-1") == 0
    assert register(controller, fields("b", "a")) == 2
    assert listed(controller) == [0, 1, 2]
    latest = controller.run(controller.schemas.get(TOPIC))
    assert latest["version"] == 2
    assert latest["registered_by"] == "p"
    assert latest["registered_ms"] == ManualClock().now_ms()
    assert latest["text"] == fields("b", "a")["text"]


def test_versions_are_there_after_a_restart_and_after_the_catalog_was_lost(
    begin: Begin, tmp_path: Path, logs: MemoryLogs
) -> None:
    controller = begin()
    for names in ("a", "ab", "abc"):
        register(controller, fields(*names))
    register(controller, fields("z"), "persistent://public/default/others")
    before = controller.run(controller.schemas.versions(TOPIC))
    assert begin().run(begin().schemas.versions(TOPIC)) == before
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    assert again.run(again.schemas.versions(TOPIC)) == before
    assert register(again, fields("a", "b")) == 1
    assert register(again, fields("d")) == 3


def test_nothing_is_registered_while_the_log_with_older_versions_is_away(
    begin: Begin, tmp_path: Path, logs: MemoryLogs
) -> None:
    register(begin(), fields("a"))
    rebuilt(tmp_path / "meta.sqlite", logs)
    logs.away.add(log_of())
    again = begin()
    with pytest.raises(WrongNode):
        register(again, fields("b"))
    logs.away.clear()
    assert register(again, fields("b")) == 1


@pytest.mark.parametrize("dies", ["die_before_append", "die_after_append"])
def test_a_death_on_the_way_gives_no_content_two_versions(begin: Begin, logs: MemoryLogs, dies: str) -> None:
    controller = begin()
    register(controller, fields("a"))
    setattr(logs, dies, True)
    with pytest.raises(Died):
        register(controller, fields("b"))
    setattr(logs, dies, False)
    again = begin()
    assert register(again, fields("c")) == (2 if dies == "die_after_append" else 1)
    assert register(again, fields("b")) == (1 if dies == "die_after_append" else 2)
    assert listed(again) == [0, 1, 2]


def test_many_that_register_at_once_make_one_version_each(begin: Begin) -> None:
    controller = begin(schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    schemas = [fields(f"f{number % 8}", default=False) for number in range(40)]

    async def all_at_once() -> list[int]:
        controller.gate = asyncio.Event()
        calls = [asyncio.ensure_future(controller.schemas.register(TOPIC, schema, "p")) for schema in schemas]
        await asyncio.sleep(0)
        controller.gate.set()
        return await asyncio.gather(*calls)

    given = asyncio.run(all_at_once())
    assert sorted(set(given)) == list(range(8))
    assert all(given[number] == given[number % 8] for number in range(40))
    assert listed(controller) == list(range(8))


def test_policies_of_topic_and_namespace_decide(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")
    controller.create("others")
    narrow, wide = fields("a", default=False), fields("a", "b", default=False)
    controller.set("public/default", "schema_compatibility_strategy", schema_compatibility_strategy="FORWARD")
    controller.set("others", "schema_compatibility_strategy", schema_compatibility_strategy="BACKWARD")
    for topic, takes in ((TOPIC, True), ("persistent://public/default/others", False)):
        assert register(controller, narrow, topic) == 0
        if takes:
            assert register(controller, wide, topic) == 1
        else:
            with pytest.raises(IncompatibleSchema, match="the strategy BACKWARD"):
                register(controller, wide, topic)
    controller.set(
        "others", "schema_compatibility_strategy", schema_compatibility_strategy="ALWAYS_INCOMPATIBLE"
    )
    assert register(controller, narrow, "persistent://public/default/others") == 0


def test_without_auto_update_administrators_alone_register(begin: Begin) -> None:
    controller = begin(is_allow_auto_update_schema_enabled=False)
    with pytest.raises(IncompatibleSchema, match="schema auto updating is disabled"):
        register(controller, fields("a"))
    with pytest.raises(IncompatibleSchema, match="schema auto updating is disabled"):
        controller.run(controller.schemas.read_with(TOPIC, fields("a"), "c"))
    assert controller.run(controller.schemas.upload(TOPIC, fields("a"), "admin")) == 0
    assert register(controller, fields("a")) == 0
    with pytest.raises(IncompatibleSchema, match="the strategy FULL"):
        controller.run(controller.schemas.upload(TOPIC, fields("b", default=False), "admin"))


def test_a_consumer_registers_on_an_idle_topic_alone(begin: Begin) -> None:
    controller = begin()
    controller.used = "the producer 'x'"
    with pytest.raises(
        IncompatibleSchema, match=r"active topic with empty\(BYTES\) schema.* the producer 'x'"
    ):
        controller.run(controller.schemas.read_with(TOPIC, fields("a"), "c"))
    controller.used = ""
    assert controller.run(controller.schemas.read_with(TOPIC, fields("a"), "c")) == 0
    newer = controller.run(controller.schemas.read_with(TOPIC, fields("a", "b"), "c"))
    assert newer == NO_SCHEMA, "checked, and not registered"
    with pytest.raises(IncompatibleSchema):
        controller.run(controller.schemas.read_with(TOPIC, fields("a", kind="JSON"), "c"))


def test_a_deletion_takes_a_number_and_keeps_the_texts_of_messages(
    begin: Begin, tmp_path: Path, logs: MemoryLogs
) -> None:
    controller = begin()
    register(controller, fields("a"))
    register(controller, fields("a", "b"))
    assert controller.run(controller.schemas.delete(TOPIC, "admin", force=False)) == 2
    assert controller.run(controller.schemas.delete(TOPIC, "admin", force=False)) == NO_SCHEMA
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    assert listed(again) == []
    with pytest.raises(TopicNotFound, match="Schema not found"):
        again.run(again.schemas.get(TOPIC))
    assert again.run(again.schemas.get(TOPIC, 1))["text"] == fields("a", "b")["text"]
    assert register(again, fields("a", kind="JSON")) == 3
    assert listed(again) == [3]
    assert again.run(again.schemas.delete(TOPIC, "admin", force=True)) == 4
    with pytest.raises(TopicNotFound):
        again.run(again.schemas.get(TOPIC, 1))
    assert register(again, fields("a")) == 5, "no number is used twice"


def test_schemas_go_with_their_topic_and_namespace(begin: Begin, tmp_path: Path, logs: MemoryLogs) -> None:
    controller = begin()
    controller.create("orders")
    register(controller, fields("a"))
    controller.run(controller.ending.delete_topic(TOPIC, False))
    assert listed(controller) == []
    controller.create("orders")
    assert register(controller, fields("z", default=False)) == 0
    controller.run(controller.calls.create_namespace("public/other"))
    of_other = "persistent://public/other/orders"
    register(controller, fields("a"), of_other)
    controller.run(controller.calls.delete_namespace("public/other", force=True))
    controller.run(controller.calls.create_namespace("public/other"))
    assert listed(controller, of_other) == []
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    assert again.run(again.schemas.get(TOPIC, 0))["text"] == fields("z", default=False)["text"]
    assert listed(again, of_other) == []


def test_copies_keep_their_schema_whatever_the_other_topic_has(begin: Begin) -> None:
    controller = begin()
    dead = "persistent://public/default/dead"
    register(controller, fields("a"))
    register(controller, fields("a", "b"))
    register(controller, fields("q", kind="JSON"), dead)
    assert controller.run(controller.schemas.copy(TOPIC, 1, dead, "c")) == 1
    assert controller.run(controller.schemas.copy(TOPIC, 0, dead, "c")) == 2
    assert controller.run(controller.schemas.copy(TOPIC, 1, dead, "c")) == 1
    with pytest.raises(TopicNotFound, match="no version 7"):
        controller.run(controller.schemas.copy(TOPIC, 7, dead, "c"))


def test_a_damaged_version_fails_what_needs_it_alone(begin: Begin, tmp_path: Path) -> None:
    controller = begin()
    for names in ("a", "ab", "abc"):
        register(controller, fields(*names))
    controller.catalog.schemas._db.execute("UPDATE schema_version SET text = 'zork' WHERE version = 1")
    with pytest.raises(CorruptData, match="version 1 of the schema of persistent"):
        controller.run(controller.schemas.get(TOPIC, 1))
    assert controller.run(controller.schemas.get(TOPIC, 2))["version"] == 2
    assert register(controller, fields("d")) == 3


def test_versions_are_bounded(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "MAX_SCHEMA_VERSIONS", 2)
    controller = begin()
    register(controller, fields("a"))
    register(controller, fields("b"))
    with pytest.raises(IncompatibleSchema, match="no more are kept"):
        register(controller, fields("c"))
    assert register(controller, fields("b")) == 1


def test_what_nobody_has_is_not_found(begin: Begin) -> None:
    controller = begin()
    for version in (-1, 0, 1_000_000, 2**80):
        with pytest.raises(TopicNotFound, match="it has none"):
            controller.run(controller.schemas.get(TOPIC, version))
    with pytest.raises(TopicNotFound):
        register(controller, fields("a"), "persistent://public/nowhere/t")
    with pytest.raises(NotAllowedError, match="broker's own topic"):
        register(controller, fields("a"), log_of())


def test_a_broker_without_system_topics_takes_no_schemas(begin: Begin) -> None:
    with pytest.raises(NotAllowedError, match="system_topic_enabled"):
        register(begin(system_topic_enabled=False), fields("a"))


def test_a_test_says_why_a_schema_would_be_refused(begin: Begin) -> None:
    controller = begin()

    def test(schema: dict[str, Any]) -> dict[str, Any]:
        return controller.run(controller.schemas.test(TOPIC, schema))

    assert test(fields("a")) == {"strategy": "FULL", "version": NO_SCHEMA, "reason": ""}
    register(controller, fields("a"))
    assert test(fields("a"))["version"] == 0
    assert "field 'b'" in test(fields("b", default=False))["reason"]
    assert "no type" in test({"type": "AVRO", "text": '"zork"', "properties": {}})["reason"]
    assert listed(controller) == [0]


def test_partitions_hear_of_enforcement_once_there_is_a_schema(begin: Begin) -> None:
    controller = begin()
    controller.create("orders")
    policies = controller.topics.policies
    controller.set("orders", "schema_validation_enforced", schema_validation_enforced=True)
    assert policies.update_for(TOPIC).overrides["is_schema_validation_enforced"] is False
    before = policies.update_for(TOPIC).version
    register(controller, fields("a"))
    assert policies.update_for(TOPIC).overrides["is_schema_validation_enforced"] is True
    assert policies.update_for(TOPIC).version > before
    assert controller.told[-1] == TOPIC
    controller.run(controller.schemas.delete(TOPIC, "admin", force=False))
    assert policies.update_for(TOPIC).overrides["is_schema_validation_enforced"] is False


def test_a_schema_makes_the_policies_newer_although_the_controller_dies_before_it_tells(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = begin(is_schema_validation_enforced=True)
    controller.create("orders")
    register(controller, fields("a"))
    controller.run(controller.schemas.delete(TOPIC, "admin", force=False))
    before = controller.topics.policies.update_for(TOPIC)
    settled = controller.catalog.settled

    async def die_once_it_is_durable() -> None:
        await settled()
        if controller.catalog.schemas.has_schema(TOPIC):
            raise Died

    monkeypatch.setattr(controller.catalog, "settled", die_once_it_is_durable)
    with pytest.raises(Died):
        register(controller, fields("a"))
    after = begin(is_schema_validation_enforced=True).topics.policies.update_for(TOPIC)
    assert after.overrides != before.overrides
    assert after.version > before.version


def test_a_schema_that_is_found_late_makes_the_policies_newer(begin: Begin, logs: MemoryLogs) -> None:
    controller = begin(is_schema_validation_enforced=True)
    controller.create("orders")
    register(controller, fields("a"))
    controller.run(controller.schemas.delete(TOPIC, "admin", force=False))
    logs.die_after_append = True
    with pytest.raises(Died):
        register(controller, fields("a"))
    logs.die_after_append = False
    controller.set("public/default", "max_producers", max_producers=3)
    before = controller.topics.policies.update_for(TOPIC)
    controller.run(controller.logs.catch_up())
    after = controller.topics.policies.update_for(TOPIC)
    assert after.overrides != before.overrides
    assert after.version > before.version


def test_events_of_a_log_that_was_given_up_are_written_anew(
    begin: Begin, tmp_path: Path, logs: MemoryLogs
) -> None:
    controller = begin()
    register(controller, fields("a"))
    register(controller, fields("a", "b"))
    controller.run(controller.schemas.delete(TOPIC, "admin", force=False))
    logs.away.add(log_of())
    assert controller.run(controller.calls.abandon_change_logs("public/default")) == [log_of()]
    rebuilt(tmp_path / "meta.sqlite", logs)
    again = begin()
    assert again.run(again.schemas.get(TOPIC, 0))["registered_by"] == "p"
    assert listed(again) == []
    assert TopicName.parse(TOPIC).full in again.catalog.schemas.topics("public/default")


def test_stats_know_type_and_version(begin: Begin) -> None:
    controller = begin()

    def in_short() -> dict[str, Any]:
        return controller.run(controller.schemas.in_short(TOPIC))

    assert in_short() == {}
    register(controller, fields("a"))
    register(controller, fields("a", "b"))
    assert in_short() == {"schemaType": "AVRO", "schemaVersion": 1}
    controller.run(controller.schemas.delete(TOPIC, "admin", force=False))
    assert in_short() == {}


def test_rows_have_one_version_for_each_content(begin: Begin) -> None:
    controller = begin()
    column = {"name": "a", "type": "int64", "nullable": True}
    first = {"type": "ARROW", "text": json.dumps({"fields": [column]}), "properties": {}}
    again = {
        "type": "ARROW",
        "text": json.dumps({"fields": [dict(reversed(column.items()))]}, indent=3),
        "properties": {},
    }
    assert register(controller, first) == register(controller, again) == 0
    for text in ("[]", "{", '{"fields": [{"name": "a", "type": "int65"}]}'):
        with pytest.raises(IncompatibleSchema, match="Invalid schema definition data for ARROW schema"):
            register(controller, {**first, "text": text})
