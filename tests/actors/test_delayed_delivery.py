"""Delayed messages on a real Ray: the tracker is a process of its own, and may be killed like any other."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from pulsar_ray import Admin, Client, ConsumerType
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import tracker_name
from tests.running_broker import Broker, dispatcher_actor

WAIT_MS = 60_000


@pytest.mark.long
def test_delayed_messages_survive_their_tracker_and_their_dispatcher(
    broker: Broker, client: Client, topic: str
) -> None:
    with Admin(broker.address) as admin:
        consumer = client.subscribe(topic, "s", ConsumerType.Shared)
        admin.topics.policies.set(topic, "delayed_delivery", strict=True)
        producer = client.create_producer(topic)
        due_ms = time.time_ns() // 1_000_000 + 15_000
        for number in range(100):
            producer.send_async(b"%d" % number, None, deliver_at=due_ms + number)
        producer.send_async(b"never now", None, deliver_after=timedelta(hours=1))
        producer.send(b"now")
        assert consumer.receive(WAIT_MS).data() == b"now"

        def delayed() -> int:
            found: int = admin.topics.stats(topic)["subscriptions"]["s"]["msgDelayed"]
            return found

        wait_until(lambda: delayed() == 101, what="all wait")
        why_blocked = admin.topics.why_blocked
        wait_until(lambda: why_blocked(topic, "s")["delayedDueInMs"] is not None, what="the tracker has them")
        tracker = tracker_name(topic, "s")
        broker.kill(tracker)
        broker.kill(dispatcher_actor(topic, "s"))
        found = []
        for _ in range(100):
            message = consumer.receive(WAIT_MS)
            assert time.time_ns() // 1_000_000 >= due_ms
            found.append(int(message.data()))
            consumer.acknowledge(message)
        assert sorted(found) == list(range(100))
        wait_until(lambda: delayed() == 1, what="one waits")
