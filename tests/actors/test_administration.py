"""Tenants, namespaces and policies on a real Ray: what only processes can show."""

from __future__ import annotations

import json
import secrets

import pytest

from pulsar_ray import Admin, Client, MessageTooBig, ProducerBusy
from pulsar_ray.transport.actor_names import CONTROLLER
from tests.running_broker import Broker, partition_actor

WAIT_MS = 60_000


def test_policies_outlive_the_processes_that_keep_and_heed_them(broker: Broker) -> None:
    tenant = f"rules-{secrets.token_hex(3)}"
    namespace, topic = f"{tenant}/of", f"{tenant}/of/orders"
    with Admin() as admin, Client() as client:
        admin.tenants.create(tenant)
        admin.namespaces.create(namespace)
        admin.namespaces.policies.set(namespace, "max_producers", 1)
        producer = client.create_producer(topic)
        producer.send(b"x" * 2000)
        admin.topics.policies.set(topic, "max_message_size", 1000)
        broker.kill(CONTROLLER)
        assert admin.topics.policies.get(topic, "max_message_size").value == {"max_message_size": 1000}
        broker.kill(partition_actor(topic))

        # Back at the restarted partition, which takes one producer more in its place otherwise.
        producer.send(b"small")
        with pytest.raises(ProducerBusy):
            client.create_producer(topic)
        producer.close()
        with pytest.raises(MessageTooBig):
            client.create_producer(topic).send(b"x" * 2000)
        admin.tenants.delete(tenant, force=True)
        assert tenant not in admin.tenants.list()


def test_an_unloaded_topic_goes_on_in_other_processes(broker: Broker) -> None:
    topic = f"unloaded-{secrets.token_hex(3)}"
    with Admin() as admin, Client() as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        before = producer.send(b"before")
        pid = admin.topics.stats(topic)["pid"]
        admin.topics.unload(topic)
        assert producer.send(b"behind").ledger_id() > before.ledger_id()
        assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"before", b"behind"]
        assert admin.topics.stats(topic)["pid"] != pid


@pytest.mark.long
def test_stores_are_checked_and_their_usage_is_published_while_it_is_read(broker: Broker) -> None:
    with Admin() as admin, Client() as client:
        (health,) = admin.brokers.healthcheck()
        assert health.problem == ""
        assert admin.brokers.list() == [health.host]
        with client.subscribe("non-persistent://pulsar/system/resource-usage", "watch") as consumer:
            usage = json.loads(consumer.receive(WAIT_MS).data())
        assert (usage["storeId"], usage["host"]) == (health.store_id, health.host)
        assert usage["memoryTotalBytes"] > usage["memoryUsedBytes"] > 0
