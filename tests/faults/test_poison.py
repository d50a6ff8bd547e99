"""A message that really kills its process: it is found, and everything else is consumed."""

from __future__ import annotations

import math
import subprocess
import sys

import pulsar_ray
from pulsar_ray import ConsumerType, InitialPosition
from pulsar_ray.testing.waiting import wait_until
from tests.running_broker import Broker

MESSAGES = 60
POISON = 23
LIMIT = 2
AT_ONCE = 16
WORKER = """
import os, signal, sys
import pulsar_ray
from pulsar_ray import ConsumerBatchReceivePolicy, ConsumerType, InitialPosition
address, topic, poison, limit, at_once = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
client = pulsar_ray.Client(address)
consumer = client.subscribe(
    topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest, ack_receipt_enabled=True,
    batch_receive_policy=ConsumerBatchReceivePolicy(at_once, -1, 100),
)
while True:
    messages = list(consumer.batch_receive())
    for message in messages:
        if message.data() == b"%d" % poison and message.failures <= limit:
            os.kill(os.getpid(), signal.SIGKILL)
        print(message.data().decode(), message.failures, flush=True)
        consumer.acknowledge(message)
"""


def test_a_poison_message_is_blamed_until_its_failures_pass_the_limit(broker: Broker, topic: str) -> None:
    client = broker.client()
    client.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=20)
    for number in range(MESSAGES):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    arguments = [broker.address, topic, *map(str, (POISON, LIMIT, AT_ONCE))]
    done: dict[int, int] = {}
    crashes = 0
    while len(done) < MESSAGES:
        command = [sys.executable, "-c", WORKER, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                number, failures = map(int, line.split())
                done[number] = failures
                if len(done) == MESSAGES:
                    worker.kill()
        crashes += len(done) < MESSAGES
        assert crashes < 30, "never found"
    assert done.pop(POISON) == LIMIT + 1
    assert not any(done.values()), "a neighbour was blamed"
    assert crashes <= 1 + math.ceil(math.log2(AT_ONCE)) + LIMIT
    again = client.subscribe(topic, "s", ConsumerType.Shared)
    with pulsar_ray.Admin(broker.address) as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] <= 1,
            what="all but the message that was on its way at the end is acknowledged",
        )
    again.close()
