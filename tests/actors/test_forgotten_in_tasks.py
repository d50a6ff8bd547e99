"""Handles that a Ray task forgets, or that were passed to it, are closed though its worker lives on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ray

from pulsar_ray import Admin, Client, ConsumerType
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.testing.waiting import wait_until
from tests.running_broker import Broker

WAIT_S = 60
WAIT_MS = WAIT_S * 1000
COUNT = 50


@ray.remote(num_cpus=0)
def open_and_forget(address: str, topic: str) -> list[bytes]:
    consumer = Client(address).subscribe(topic, "s", ConsumerType.Shared)
    return [consumer.receive(WAIT_MS).data() for _ in range(3)]


@ray.remote(num_cpus=0)
def use(consumer: Consumer, producer: Producer) -> list[bytes]:
    producer.send(b"from the task")
    return [consumer.receive(WAIT_MS).data() for _ in range(3)]


def test_what_a_task_had_goes_to_others_when_it_is_over(broker: Broker, client: Client, topic: str) -> None:
    passed = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    passed.close()
    for number in range(COUNT):
        producer.send(b"%d" % number)
    tasks: list[Any] = [open_and_forget.remote(broker.address, topic)]
    assert len(ray.get(tasks.pop(), timeout=WAIT_S)) == 3
    tasks.append(use.remote(passed, producer))
    assert len(ray.get(tasks.pop(), timeout=WAIT_S)) == 3
    other = client.subscribe(topic, "s", ConsumerType.Shared)
    got = [other.receive(WAIT_MS) for _ in range(COUNT + 1)]
    sent = {b"%d" % number for number in range(COUNT)} | {b"from the task"}
    assert {message.data() for message in got} == sent
    assert {message.redelivery_count() for message in got} == {0}
    with Admin(broker.address) as admin:
        wait_until(
            lambda: len(admin.topics.stats(topic)["publishers"]) == 1, WAIT_S, "the task's producer is gone"
        )


PROGRAM = """
import sys, ray, pulsar_ray
from ray import cloudpickle

address, topic = sys.argv[1:]
for number in range(3):
    ray.init(address, log_to_driver=False)
    with pulsar_ray.Client() as client:
        pickled = cloudpickle.dumps(client.create_producer(topic))
    with cloudpickle.loads(pickled) as producer:
        print(producer.send(b"%d" % number).entry_id(), flush=True)
    ray.shutdown()
"""


def test_a_handle_works_in_each_stay_on_one_ray(broker: Broker, topic: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.address, topic],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.stdout.splitlines() == ["0", "1", "2"], ran.stderr
