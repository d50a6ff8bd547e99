"""Policies are kept in ordinary topics of the broker's own: read by anybody, written by the broker alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotAllowedError, TopicNotFound
from pulsar_ray.model.enums import InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName, change_log, change_log_partition, system_change_log
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers

MakeBroker = Callable[..., Broker]
TIMEOUT_S = 10.0


def ask(broker: Broker, method: str, *arguments: Any) -> Any:
    call = "call_part", "administration", method, *arguments
    return broker.cluster.controller(*call, timeout_s=TIMEOUT_S)


def listed(broker: Broker, namespace: str, include_system: bool = False) -> Any:
    return broker.cluster.controller("list_topics", namespace, include_system, timeout_s=TIMEOUT_S)


def retention(minutes: int) -> dict[str, int]:
    return {"retention_time_in_minutes": minutes, "retention_size_in_mb": -1}


def test_a_consumer_reads_the_changes_and_nobody_else_publishes(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"x")
    full = TopicName.parse(topic).full
    for minutes in (1, 2):
        ask(broker, "set_policy", topic, "retention", retention(minutes))
    log = change_log("public/default").full
    consumer = client.subscribe(log, "s", initial_position=InitialPosition.Earliest)
    received = [consumer.receive(10_000) for _ in range(2)]
    events = [json.loads(message.data()) for message in received]
    assert [event["policies"]["retention"]["retention_time_in_minutes"] for event in events] == [1, 2]
    assert [event["actionType"] for event in events] == ["INSERT", "UPDATE"]
    assert {event["eventType"] for event in events} == {"TOPIC_POLICY"}
    assert {message.partition_key() for message in received} == {full}
    assert {message.topic_name() for message in received} == {
        change_log_partition("public/default", full).full
    }
    with pytest.raises(NotAllowedError, match="only the broker publishes"):
        client.create_producer(log)
    with pytest.raises(TopicNotFound, match="had no use for it yet"):
        client.create_producer("non-persistent://pulsar/system/x")


def test_logs_are_hidden_and_match_no_pattern(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"x")
    ask(broker, "set_policy", topic, "retention", retention(1))
    full, log = TopicName.parse(topic).full, change_log("public/default").full
    assert listed(broker, "public/default") == [(full, 0)]
    assert listed(broker, "public/default", True) == [(log, 4), (full, 0)]
    assert listed(broker, "pulsar/system", True) == [(system_change_log().full, 0)]
    with Admin._on(broker.cluster) as admin:
        assert admin.topics.list() == [full]
        with pytest.raises(NotAllowedError, match="is a system topic"):
            admin.topics.delete(log, force=True)


def settings_of(broker: Broker, topic: str) -> Settings:
    """The settings that a partition heeds just now."""
    return broker.cluster.partition(topic).in_force.settings


def test_policies_hold_on_what_runs_and_after_everything_was_killed(make_broker: MakeBroker) -> None:
    broker = make_broker(default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"first")
    namespace = {"max_entries_per_ledger": 2, "min_ledger_rollover_time_minutes": 0}
    ask(broker, "set_policy", "public/default", "persistence", namespace)
    ids = [producer.send(value) for value in numbers(0, 6)]
    assert len({message_id.ledger_id() for message_id in ids}) >= 3
    ask(broker, "set_policy", topic, "persistence", {"max_entries_per_ledger": 100})
    broker.cluster.kill(broker.cluster.partition(topic).address)
    producer.send(b"x")
    # One that is restarted begins with those of its creation, and asks for what has changed since.
    wait_until(lambda: settings_of(broker, topic).managed_ledger_max_entries_per_ledger == 100)
    settings = settings_of(broker, topic)
    assert settings.managed_ledger_min_ledger_rollover_time_minutes == 0, "of the namespace"
    ask(broker, "remove_policy", topic, "persistence")
    ids = [producer.send(value) for value in numbers(16, 22)]
    assert len({message_id.ledger_id() for message_id in ids}) >= 3


def test_changes_are_kept_while_the_partition_of_their_log_dies(
    client: Client, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"x")
    log = change_log_partition("public/default", TopicName.parse(topic).full).full
    with caplog.at_level(logging.ERROR):
        for minutes in range(1, 6):
            ask(broker, "set_policy", topic, "retention", retention(minutes))
            broker.cluster.kill(broker.cluster.partition(log).address)
    records = broker.cluster.call_again(
        broker.cluster.partition(log).address,
        "call",
        "read_messages",
        {"behind": [-1, -1]},
        timeout_s=TIMEOUT_S,
    )
    assert [json.loads(record["value"])["policies"]["retention"] for record in records] == [
        retention(minutes) for minutes in range(1, 6)
    ]
    again = broker.cluster.call_again(
        broker.cluster.partition(log).address,
        "call",
        "read_messages",
        {"behind": records[2]["position"]},
        timeout_s=TIMEOUT_S,
    )
    assert again == records[3:]


def test_the_broker_appends_to_its_own_topics_alone(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"x")
    address = broker.cluster.partition(topic).address
    arguments = {"key": "k", "value": "v"}
    with pytest.raises(NotAllowedError, match="no system topic"):
        broker.cluster.call(address, "call", "append_message", arguments, timeout_s=TIMEOUT_S)


def test_limits_of_the_broker_do_not_hold_for_its_own_topics(make_broker: MakeBroker) -> None:
    broker = make_broker(
        max_message_size=64,
        subscription_types_enabled="Shared",
        dispatch_throttling_rate_per_subscription_in_byte=1,
        max_unacked_messages_per_consumer=1,
        max_unacked_messages_per_subscription=1,
    )
    admin = broker.admin()
    (health,) = admin.brokers.healthcheck()
    assert health.problem == ""
    for tenant in ("a", "b", "c"):
        admin.tenants.create(tenant)
    reader = broker.client().create_reader(system_change_log().full, MessageId.earliest)
    assert [reader.read_next(10_000).partition_key() for _ in range(3)] == ["a", "b", "c"]
