"""Clients whose processes are stopped give up what somebody else wants, long before their lease ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import pulsar_ray
from pulsar_ray import ConsumerType
from tests.faults.conftest import DEADLINE_S
from tests.running_broker import Broker

WAIT_MS = 30_000
HOLDER = """
import sys, pulsar_ray
from pulsar_ray import ConsumerType, InitialPosition
address, topic, kind = sys.argv[1:]
client = pulsar_ray.Client(address)
consumer = client.subscribe(topic, "s", ConsumerType[kind], initial_position=InitialPosition.Earliest)
producer = client.create_producer(topic, producer_name="fixed")
got = [consumer.receive(30_000).data() for _ in range(3)]
print("holds", flush=True)
sys.stdin.readline()
try:
    producer.send(b"late")
    print("sent", flush=True)
except pulsar_ray.PulsarException as error:
    print(type(error).__name__, flush=True)
"""

Hold = Callable[[str, ConsumerType], "subprocess.Popen[str]"]


@pytest.fixture
def hold(broker: Broker) -> Iterator[Hold]:
    started: list[subprocess.Popen[str]] = []

    def start(topic: str, kind: ConsumerType) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, broker.address, topic, kind.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_stopped_holder_yields_to_who_wants_its_place(
    broker: Broker, topic: str, hold: Hold, kind: ConsumerType
) -> None:
    client = broker.client(operation_timeout_seconds=int(DEADLINE_S))
    plain = client.create_producer(topic)
    for number in range(5):
        plain.send(b"%d" % number)
    holder = hold(topic, kind)
    if kind == ConsumerType.Exclusive:
        with pytest.raises(pulsar_ray.ConsumerBusy):  # it runs
            client.subscribe(topic, "s")
        with pytest.raises(pulsar_ray.ProducerBusy):
            client.create_producer(topic, producer_name="fixed")
    os.kill(holder.pid, signal.SIGSTOP)
    consumer = client.subscribe(topic, "s", kind)
    assert [consumer.receive(WAIT_MS).data() for _ in range(5)] == [b"%d" % number for number in range(5)]
    producer = client.create_producer(topic, producer_name="fixed")
    producer.send(b"new")
    assert consumer.receive(WAIT_MS).data() == b"new"
    os.kill(holder.pid, signal.SIGCONT)
    outcome, _ = holder.communicate("go on\n", timeout=DEADLINE_S)
    assert outcome.strip() != "sent"  # its name is somebody else's
    assert consumer.is_connected() or kind == ConsumerType.Failover
