"""Tenants, namespaces and policies by `Admin`, with clients connected, over every carrier."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.errors import (
    ConsumerBusy,
    InvalidConfiguration,
    MessageTooBig,
    NotAllowedError,
    ProducerBusy,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.transport.actor_names import partition_name
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker

MakeBroker = Callable[..., Broker]


@pytest.fixture
def admin(broker: Broker) -> Admin:
    return broker.admin()


def test_topics_of_a_new_namespace_work_and_go_with_it(admin: Admin, client: Client) -> None:
    admin.tenants.create("shop", admin_roles=["ops"], allowed_clusters=["here"])
    admin.namespaces.create("shop/eu")
    assert admin.tenants.list() == ["public", "pulsar", "shop"]
    assert admin.tenants.get("shop") == {"admin_roles": ["ops"], "allowed_clusters": ["here"]}
    assert admin.namespaces.list("shop") == ["shop/eu"]
    consumer = client.subscribe("shop/eu/orders", "s")
    client.create_producer("shop/eu/orders").send(b"one")
    assert consumer.receive(WAIT_MS).data() == b"one"
    assert admin.topics.list("shop/eu") == ["persistent://shop/eu/orders"]
    with pytest.raises(NotAllowedError, match="namespaces"):
        admin.tenants.delete("shop")
    with pytest.raises(NotAllowedError, match="non empty namespace"):
        admin.namespaces.delete("shop/eu")
    admin.tenants.delete("shop", force=True)
    assert admin.tenants.list() == ["public", "pulsar"]
    with pytest.raises(TopicNotFound):
        client.create_producer("shop/eu/orders")


@pytest.mark.parametrize(("part", "method"), [("stores", "end"), ("schemas", "_record")])
def test_calls_of_the_controller_that_there_are_not_are_refused(
    broker: Broker, part: str, method: str
) -> None:
    with pytest.raises(InvalidConfiguration, match="controller has no"):
        broker.cluster.controller("call_part", part, method, timeout_s=10)


def test_a_tenants_fields_are_replaced(admin: Admin) -> None:
    admin.tenants.create("a", admin_roles=["x"])
    admin.tenants.update("a", admin_roles=["y", "z"])
    assert admin.tenants.get("a")["admin_roles"] == ["y", "z"]


def test_each_level_counts_before_the_one_above(make_broker: MakeBroker) -> None:
    broker = make_broker(max_producers_per_topic=3)
    admin, client, topic = broker.admin(), broker.client(), broker.topic()
    namespace = "public/default"
    first = client.create_producer(topic)

    def limit() -> tuple[object, str]:
        found = admin.topics.policies.get(topic, "max_producers")
        return found.value["max_producers"], found.sources["max_producers"]

    assert limit() == (3, "broker")
    admin.namespaces.policies.set(namespace, "max_producers", 1)
    assert limit() == (1, "namespace")
    with pytest.raises(ProducerBusy):
        client.create_producer(topic)
    admin.topics.policies.set(topic, "max_producers", 2)
    assert limit() == (2, "topic")
    second = client.create_producer(topic)
    admin.topics.policies.remove(topic, "max_producers")
    assert limit() == (1, "namespace")
    assert (first.send(b"1") is not None, second.send(b"2") is not None) == (True, True)
    admin.namespaces.policies.remove(namespace, "max_producers")
    client.create_producer(topic)
    with pytest.raises(ProducerBusy):
        client.create_producer(topic)


def test_a_message_size_counts_for_producers_that_are_open(admin: Admin, client: Client) -> None:
    topic = "persistent://public/default/sizes"
    producer = client.create_producer(topic)
    producer.send(b"x" * 2000)
    admin.topics.policies.set(topic, "max_message_size", 1000)
    with pytest.raises(MessageTooBig):
        producer.send(b"x" * 2000)
    producer.send(b"small")
    admin.topics.policies.remove(topic, "max_message_size")
    client.create_producer(topic).send(b"x" * 2000)


def test_policies_of_a_namespace_hold_for_topics_to_come_and_all_partitions(
    admin: Admin, client: Client
) -> None:
    admin.tenants.create("shop")
    admin.namespaces.create("shop/eu")
    admin.namespaces.policies.set("shop/eu", "max_consumers_per_subscription", 1)
    admin.namespaces.policies.set(
        "shop/eu", "auto_topic_creation", topic_type="partitioned", default_num_partitions=2
    )
    client.create_producer("shop/eu/new").send(b"x")
    assert admin.topics.get_partitions("shop/eu/new") == 2
    client.subscribe("shop/eu/new", "s", ConsumerType.Shared)
    with pytest.raises(ConsumerBusy):
        client.subscribe("shop/eu/new", "s", ConsumerType.Shared)
    client.subscribe("other", "s", ConsumerType.Shared)
    client.subscribe("other", "s", ConsumerType.Shared)
    admin.topics.policies.set("shop/eu/new-partition-1", "max_consumers_per_subscription", 0)
    client.subscribe("shop/eu/new", "s", ConsumerType.Shared)
    assert admin.topics.policies.get("shop/eu/new", "max_consumers_per_subscription").sources == {
        "max_consumers_per_subscription": "topic"
    }


def test_a_partition_that_does_not_exist_has_no_policies(admin: Admin) -> None:
    admin.topics.create_partitioned_topic("pp", 2)
    for calls in (
        admin.topics.policies.list,
        lambda topic: admin.topics.policies.get(topic, "max_consumers"),
        lambda topic: admin.topics.policies.set(topic, "max_consumers", 1),
        lambda topic: admin.topics.policies.remove(topic, "max_consumers"),
    ):
        calls("pp-partition-1")
        with pytest.raises(TopicNotFound, match="pp has 2 partitions"):
            calls("pp-partition-9")
    assert admin.topics.policies.get("pp", "max_consumers").value == {"max_consumers": 0}


def test_an_error_for_a_missing_topic_names_the_nearest(admin: Admin) -> None:
    admin.topics.create_topic("orders")
    for call in (admin.topics.get_partitions, admin.topics.delete, admin.topics.policies.list):
        with pytest.raises(TopicNotFound, match="did you mean persistent://public/default/orders"):
            call("oders")
    admin.topics.create_partitioned_topic("pp", 2)
    with pytest.raises(TopicNotFound, match="is a partition: give the topic"):
        admin.topics.delete("pp-partition-1")


def test_what_is_created_at_first_use_is_a_policy(admin: Admin, client: Client) -> None:
    admin.namespaces.policies.set("public/default", "auto_topic_creation", allow_auto_topic_creation=False)
    with pytest.raises(TopicNotFound):
        client.create_producer("unmade")
    admin.topics.create_topic("made")
    admin.topics.policies.set("made", "auto_subscription_creation", False)
    with pytest.raises(SubscriptionNotFound):
        client.subscribe("made", "s")
    admin.topics.create_subscription("made", "s")
    client.subscribe("made", "s", initial_position=EARLIEST)
    admin.namespaces.policies.remove("public/default", "auto_topic_creation")
    client.create_producer("unmade")


def test_a_namespace_takes_so_many_topics(admin: Admin) -> None:
    admin.tenants.create("shop")
    admin.namespaces.create("shop/eu")
    admin.namespaces.policies.set("shop/eu", "max_topics_per_namespace", 3)
    admin.topics.create_partitioned_topic("shop/eu/two", 2)
    admin.topics.create_topic("shop/eu/one")
    with pytest.raises(NotAllowedError, match="Exceed maximum number of topics in namespace"):
        admin.topics.create_topic("shop/eu/more")
    admin.topics.delete("shop/eu/one")
    admin.topics.create_topic("shop/eu/more")


def test_a_deleted_topics_policies_are_not_those_of_the_next_one(admin: Admin) -> None:
    admin.topics.create_topic("t")
    admin.topics.policies.set("t", "max_consumers", 1)
    admin.topics.delete("t")
    with pytest.raises(TopicNotFound):
        admin.topics.policies.get("t", "max_consumers")
    admin.topics.create_topic("t")
    assert admin.topics.policies.get("t", "max_consumers").sources == {"max_consumers": "broker"}


def test_policies_of_a_non_persistent_topic(admin: Admin, client: Client) -> None:
    topic = "non-persistent://public/default/fleeting"
    client.create_producer(topic)
    admin.topics.policies.set(topic, "max_producers", 1)
    with pytest.raises(ProducerBusy):
        client.create_producer(topic)


def test_the_logs_of_changes_are_the_brokers_own(admin: Admin, client: Client) -> None:
    admin.topics.create_topic("t")
    admin.topics.policies.set("t", "max_consumers", 1)
    log = "persistent://public/default/__change_events"
    assert log not in admin.topics.list()
    assert admin.topics.list(include_system_topic=True) == [log, "persistent://public/default/t"]
    with pytest.raises(NotAllowedError, match="system topic"):
        client.create_producer(log)
    with pytest.raises(NotAllowedError, match="system topic"):
        admin.topics.delete(log, force=True)
    with pytest.raises(NotAllowedError, match="system topic"):
        admin.topics.create_topic("persistent://public/default/__transaction_buffer_snapshot")
    with pytest.raises(NotAllowedError, match="system topic"):
        admin.topics.policies.set(log, "max_consumers", 1)
    reader = client.subscribe(log, "audit", initial_position=EARLIEST)
    assert b"max_consumers" in reader.receive(WAIT_MS).data()


def test_a_repeat_after_a_lost_answer_is_no_error(admin: Admin, broker: Broker) -> None:
    def once_lost(call: Callable[[], object]) -> None:
        broker.cluster.control.answers_to_lose = 1
        call()

    once_lost(lambda: admin.tenants.create("shop"))
    once_lost(lambda: admin.namespaces.create("shop/eu"))
    once_lost(lambda: admin.namespaces.policies.set("shop/eu", "max_consumers", 3))
    assert admin.namespaces.policies.get("shop/eu", "max_consumers").value == {"max_consumers": 3}
    once_lost(lambda: admin.namespaces.policies.remove("shop/eu", "max_consumers"))
    once_lost(lambda: admin.namespaces.delete("shop/eu"))
    once_lost(lambda: admin.tenants.delete("shop"))
    with pytest.raises(NotAllowedError, match="already exists"):
        admin.tenants.create("public")


def test_a_check_of_the_stores_publishes_and_reads(admin: Admin, broker: Broker) -> None:
    (health,) = admin.brokers.healthcheck()
    assert health.problem == ""
    assert 0 < health.publish_ms < health.receive_ms
    again = admin.brokers.healthcheck()
    assert [one.store_id for one in again] == [health.store_id]
    (topic,) = [t for t in admin.topics.list("pulsar/system", include_system_topic=True) if "heartbeat" in t]
    assert admin.topics.list("pulsar/system") == []
    assert admin.topics.stats(topic)["msgInCounter"] == 4
    broker.cluster.kill(partition_name(topic))
    assert [one.problem for one in admin.brokers.healthcheck()] == [""]


def test_a_check_says_why_a_store_fails(admin: Admin, broker: Broker) -> None:
    admin.brokers.healthcheck()
    broker.cluster.disk.fail("writev", *[errno.EIO] * 20)
    (health,) = admin.brokers.healthcheck()
    # Whoever asks again, for the answer was lost, is told of the first refusal.
    assert "could not store" in health.problem or "it was not stored" in health.problem


def test_a_partition_that_the_usage_topic_does_not_have_is_refused(client: Client) -> None:
    topic = "non-persistent://pulsar/system/resource-usage"
    with pytest.raises(NotAllowedError, match="which has 4"):
        client.subscribe(f"{topic}-partition-7", "s")
    assert len(client.get_topic_partitions(topic)) == 4
