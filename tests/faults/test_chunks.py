"""Kills in the middle of large messages: of the partition, of the dispatcher, and of a producer's process."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys

import pytest

import pulsar_ray
from pulsar_ray import ConsumerType
from pulsar_ray.errors import Result
from pulsar_ray.testing.waiting import wait_until
from tests.running_broker import Broker, dispatcher_actor, partition_actor

ROUNDS = 6
MESSAGE_BYTES = 24_000_000
TIMEOUT_MS = 90_000
SENDER = """
import sys
import pulsar_ray
client = pulsar_ray.Client(sys.argv[1])
producer = client.create_producer(
    sys.argv[2], chunking_enabled=True, chunk_max_message_size=20_000, send_timeout_millis=90_000
)
while True:
    producer.send_async(bytes(20_000_000), None)
    print("sending", flush=True)
    producer.flush()
"""


@pytest.mark.long
def test_messages_that_a_kill_interrupts_arrive_whole_and_once(broker: Broker, topic: str) -> None:
    client = broker.client()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    producers = [
        client.create_producer(
            topic,
            f"p{number}",
            chunking_enabled=True,
            block_if_queue_full=True,
            send_timeout_millis=TIMEOUT_MS,
        )
        for number in range(2)
    ]
    results: list[Result] = []
    sent: list[str] = []
    got: list[str] = []

    def receive() -> None:
        message = consumer.receive(TIMEOUT_MS)
        got.append(hashlib.sha256(message.data()).hexdigest())
        consumer.acknowledge(message)

    for turn in range(ROUNDS):
        for producer in producers:
            value = os.urandom(MESSAGE_BYTES)
            sent.append(hashlib.sha256(value).hexdigest())
            producer.send_async(value, lambda result, _: results.append(result))
        victim = dispatcher_actor(topic, "s") if turn % 2 else partition_actor(topic)
        killed = broker.kill(victim)
        receive()
        broker.wait_for_other(victim, killed)
    for producer in producers:
        producer.flush()
    while len(got) < len(sent):
        receive()
    assert set(results) == {Result.Ok}
    assert sorted(got) == sorted(sent)
    with pulsar_ray.Admin(broker.address) as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0,
            what="nothing is left, and nothing comes again",
        )


def test_what_a_killed_producer_had_begun_expires(broker: Broker, topic: str) -> None:
    client = broker.client()
    consumer = client.subscribe(topic, "s", expire_time_of_incomplete_chunked_message_ms=1000)
    arguments = [sys.executable, "-c", SENDER, broker.address, topic]

    with pulsar_ray.Admin(broker.address) as admin:

        def incomplete() -> int:
            count: int = admin.topics.stats(topic)["subscriptions"]["s"]["incompleteChunkedMessages"]
            return count

        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as sender:
            assert sender.stdout is not None
            sender.stdout.readline()
            wait_until(lambda: incomplete() == 1, what="it is in the middle of a message")
            sender.send_signal(signal.SIGKILL)
        whole = client.create_producer(topic, chunking_enabled=True).send(bytes(6_000_000))
        while (message := consumer.receive(TIMEOUT_MS)).message_id() != whole:
            assert len(message.data()) == 20_000_000
            consumer.acknowledge(message)
        consumer.acknowledge(message)
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0,
            what="its chunks keep nothing",
        )
