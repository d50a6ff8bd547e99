"""Delays, deduplication and dead letters together, while everything that serves them is killed and frozen.

The checker knows where each message must have arrived: in the log once and in order, then either with the
application, not before it was due, or in the dead letter topic. FAULTS_SEED repeats a run as far as the
seed decides it.
"""

from __future__ import annotations

import os
import random
import secrets
import threading

import pytest

from pulsar_ray import (
    Client,
    Consumer,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    Message,
    Producer,
)
from pulsar_ray.admin import Admin
from pulsar_ray.errors import Timeout
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import tracker_name
from tests.faults.chaos import Chaos
from tests.faults.failing_consumer import POISON, SUBSCRIPTION, is_poison
from tests.faults.reading import payloads, read_all
from tests.faults.receiving_thread import (
    RECEIVE_MS,
    ReceivingThread,
    came_early,
    now_ms,
    wait_for_all,
)
from tests.running_broker import Broker, dispatcher_actor, partition_actor

CHAOS_S = 120
CATCH_UP_S = 150.0
OPERATION_S = 120
LONGEST_DELAY_MS = 3_000
MOST_IN_A_WINDOW = 200


def consume(client: Client, topic: str) -> ReceivingThread:
    """Consume on a thread, and fail what is poison."""
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=20,
        dead_letter_policy=ConsumerDeadLetterPolicy(2),
    )
    return ReceivingThread(consumer, answer)


def answer(consumer: Consumer, message: Message) -> None:
    if is_poison(message.data()):
        consumer.negative_acknowledge(message)
    else:
        consumer.acknowledge(message)


class Windows:
    """A producer's messages, of which random ones are sent again by its successors of the same name."""

    def __init__(self, client: Client, topic: str, chance: random.Random) -> None:
        self._client = client
        self._topic = topic
        self._chance = chance
        self.due_ms: list[int] = []

    def send(self) -> None:
        """Send some messages again, and new ones behind them; returns once all are stored."""
        chance = self._chance
        first = max(0, len(self.due_ms) - chance.randrange(MOST_IN_A_WINDOW))
        end = max(len(self.due_ms), first + chance.randrange(1, MOST_IN_A_WINDOW))
        while len(self.due_ms) < end:
            self.due_ms.append(now_ms() + chance.choice((0, 0, 300, LONGEST_DELAY_MS)))
        producer = self._open()
        for number in range(first, end):
            producer.send_async(b"%d" % number, None, sequence_id=number, deliver_at=self.due_ms[number])
        producer.flush()
        producer.close()

    def _open(self) -> Producer:
        return self._client.create_producer(
            self._topic, "windows", send_timeout_millis=0, block_if_queue_full=True
        )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_message_arrives_where_it_must(broker: Broker, topic: str) -> None:
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbelow(10**6))
    print(f"FAULTS_SEED={seed}")
    client = broker.client(operation_timeout_seconds=OPERATION_S)
    full = TopicName.parse(topic).full
    letters = f"{full}-{SUBSCRIPTION}-DLQ"
    workers = [consume(client, topic) for _ in range(2)]
    looking = client.subscribe(letters, "looks", initial_position=InitialPosition.Earliest)
    with Admin(broker.address) as admin:
        admin.topics.policies.set(topic, "delayed_delivery", strict=True)
        admin.topics.policies.set(topic, "deduplication", deduplication=True)
    windows = Windows(client, topic, random.Random(seed))
    windows.send()
    actors = [
        partition_actor(topic),
        dispatcher_actor(topic, SUBSCRIPTION),
        tracker_name(full, SUBSCRIPTION),
        partition_actor(letters),
    ]
    chaos = threading.Thread(target=Chaos(broker, seed, actors, []).run, args=(CHAOS_S,))
    chaos.start()
    while chaos.is_alive():
        windows.send()
        chaos.join(0.1)
    due_ms = windows.due_ms
    poison = set(range(0, len(due_ms), POISON))
    dead: set[int] = set()

    with Admin(broker.address) as admin:
        wait_for_all(workers, len(due_ms), CATCH_UP_S, admin, topic, SUBSCRIPTION)

    def all_moved() -> bool:
        try:
            while True:
                message = looking.receive(RECEIVE_MS)
                dead.add(int(message.data()))
                looking.acknowledge(message)
        except Timeout:
            return dead >= poison

    wait_until(all_moved, CATCH_UP_S, f"seed {seed}: all of {len(poison)} dead letters")
    with Admin(broker.address) as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"][SUBSCRIPTION]["msgBacklog"] == 0,
            CATCH_UP_S,
            "the acknowledgments",
        )
    for worker in workers:
        worker.stop()
    assert dead == poison, f"seed {seed}: good messages among the dead letters"
    early = came_early(workers, dict(enumerate(due_ms)))
    assert not early, f"seed {seed}: (number, ms early) {early}"
    stored = [int(payload) for payload in payloads(read_all(client, topic))]
    assert stored == list(range(len(due_ms))), f"seed {seed}: stored {len(stored)} of {len(due_ms)}"
