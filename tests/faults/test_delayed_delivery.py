"""Trackers, dispatchers and partitions are killed and frozen while delays fall due.

Each message comes, none before it is due. FAULTS_SEED repeats a run as far as the seed
decides it; FAULTS_SECONDS makes it shorter or longer.
"""

from __future__ import annotations

import os
import random
import secrets
import threading

import pytest

from pulsar_ray import ConsumerType
from pulsar_ray.admin import Admin
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import tracker_name
from tests.faults.chaos import Chaos
from tests.faults.receiving_thread import ReceivingThread, came_early, now_ms, wait_for_all
from tests.running_broker import Broker, dispatcher_actor, partition_actor

CATCH_UP_S = 120.0
LONGEST_DELAY_MS = 6_000


@pytest.mark.long
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared], ids=str)
def test_delayed_messages_survive_whatever_dies(broker: Broker, topic: str, kind: ConsumerType) -> None:
    seconds = float(os.environ.get("FAULTS_SECONDS", "40"))
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbelow(10**6))
    print(f"FAULTS_SEED={seed}")
    chance = random.Random(seed)
    client = broker.client()
    consumers = [client.subscribe(topic, "s", kind) for _ in range(2)]
    with Admin(broker.address) as admin:
        admin.topics.policies.set(topic, "delayed_delivery", strict=True)
    producer = client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=120_000)
    due_ms: dict[int, int] = {}
    tracker = tracker_name(TopicName.parse(topic).full, "s")
    actors = [partition_actor(topic), dispatcher_actor(topic, "s"), tracker]
    chaos = threading.Thread(target=Chaos(broker, seed, actors, []).run, args=(seconds,))
    producer.send(b"0", deliver_at=due_at(due_ms, 0, 1))
    threads = [ReceivingThread(consumer) for consumer in consumers]
    chaos.start()
    while chaos.is_alive():
        for _ in range(chance.choice((1, 5, 50))):
            number = len(due_ms)
            delay_ms = chance.choice((0, 5, 300, 1_500, LONGEST_DELAY_MS))
            key = str(chance.randrange(20))
            producer.send_async(
                b"%d" % number, None, partition_key=key, deliver_at=due_at(due_ms, number, delay_ms)
            )
        chaos.join(chance.random() * 0.2)
    producer.flush()
    with Admin(broker.address) as admin:
        wait_for_all(threads, len(due_ms), CATCH_UP_S, admin, topic, "s")
    for thread in threads:
        thread.stop()
    early = came_early(threads, due_ms)
    assert not early, f"seed {seed}: (number, ms early) {early}"


def due_at(due_ms: dict[int, int], number: int, delay_ms: int) -> int:
    due_ms[number] = now_ms() + delay_ms
    return due_ms[number]
