"""Policies on a real Ray: they reach what runs, and survive the controller and its catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.catalog.founding import StartPermission
from pulsar_ray.config import Settings
from pulsar_ray.launch.start import start_broker, stop_broker
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import CONTROLLER
from pulsar_ray.transport.ray_cluster import RayCluster
from tests.running_broker import Broker, dispatcher_actor, partition_actor

TOPIC = "persistent://acme/orders/t"
WAIT_S = 60.0


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    try:
        yield broker
    finally:
        broker.close()


def ask(method: str, *arguments: Any) -> Any:
    return RayCluster().controller("call_part", "administration", method, *arguments, timeout_s=WAIT_S)


def heeded(broker: Broker, actor: str, setting: str) -> Any:
    """The value of a setting that an actor heeds now."""
    return broker.run_in(actor, lambda self: getattr(self._in_force.settings, setting))


def described() -> dict[str, Any]:
    return {
        "tenants": ask("tenants"),
        "tenant": ask("tenant", "acme"),
        "namespaces": ask("namespaces", "acme"),
        "namespace": ask("policies", "acme/orders", "max_producers"),
        "topic": ask("policies", TOPIC),
    }


@pytest.mark.long
@pytest.mark.timeout(300)
def test_policies_reach_actors_and_outlive_the_controller_and_the_catalog(own_broker: Broker) -> None:
    broker = own_broker
    ask("create_tenant", "acme", {"admin_roles": ["boss"]})
    ask("create_namespace", "acme/orders", {"max_producers": {"max_producers": 9}})
    client = broker.client()
    consumer = client.subscribe(TOPIC, "s")
    client.create_producer(TOPIC).send(b"x")
    partition, dispatcher = partition_actor(TOPIC), dispatcher_actor(TOPIC, "s")
    assert heeded(broker, partition, "max_producers_per_topic") == 9
    ask(
        "set_policy",
        "acme/orders",
        "max_unacked_messages_per_consumer",
        {"max_unacked_messages_per_consumer": 7},
    )
    ask("set_policy", TOPIC, "max_producers", {"max_producers": 8})
    for actor in (partition, dispatcher):
        assert heeded(broker, actor, "max_producers_per_topic") == 8
        assert heeded(broker, actor, "max_unacked_messages_per_consumer") == 7
    before = described()

    former = broker.kill(CONTROLLER)
    former_dispatcher = broker.kill(dispatcher)
    broker.wait_for_other(CONTROLLER, former)
    assert described() == before
    broker.wait_for_other(dispatcher, former_dispatcher)
    wait_until(
        lambda: heeded(broker, dispatcher, "max_unacked_messages_per_consumer") == 7,
        WAIT_S,
        "the policies of a restarted dispatcher",
    )
    ask("set_policy", TOPIC, "max_producers", {"max_producers": 6})
    assert heeded(broker, partition, "max_producers_per_topic") == 6
    before = described()

    consumer.close()
    client.shutdown()
    stop_broker()
    for file in broker.data_dir.glob("meta.sqlite*"):
        file.unlink()
    settings = Settings(data_dir=str(broker.data_dir))
    start_broker(settings, StartPermission(may_found=True, may_rebuild=True))
    assert described() == before
    assert broker.client().get_topic_partitions(TOPIC) == [TOPIC]
    wait_until(lambda: heeded(broker, partition, "max_producers_per_topic") == 6, WAIT_S, "the partition")
