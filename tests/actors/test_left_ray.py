"""A program that leaves Ray and forgets its client."""

from __future__ import annotations

import subprocess
import sys

from tests.running_broker import Broker, partition_actor

DEADLINE_S = 120
PROGRAM = """
import sys, ray, pulsar_ray
from pulsar_ray.errors import BrokerGone
from pulsar_ray.testing.waiting import wait_until

address, topic = sys.argv[1:]
ray.init(address, log_to_driver=False)
producer = pulsar_ray.Client().create_producer(topic)
producer.send(b"a")
ray.shutdown()
print("left", flush=True)
sys.stdin.read()

def is_gone():
    # Its socket is there until the partition ends, and its name is looked up then.
    try:
        producer.send(b"b")
    except BrokerGone as error:
        return error.text

print(wait_until(is_gone, 60, "an error"))
print("on Ray:", ray.is_initialized())
"""


def test_a_client_that_nobody_closed_starts_no_ray(broker: Broker, topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, broker.address, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "left\n"
            broker.kill(partition_actor(topic))
            output, _ = program.communicate(timeout=DEADLINE_S)
        finally:
            program.kill()
    assert output.splitlines() == [
        "this process has left the Ray of this client: make a new Client",
        "on Ray: False",
    ]
