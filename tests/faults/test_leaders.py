"""A leader that is stopped, and wakes up when another one leads, cannot write any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pulsar_ray import ProducerAccessMode
from tests.faults.conftest import DEADLINE_S
from tests.faults.reading import payloads, read_all
from tests.running_broker import Broker, partition_actor

LEADER = """
import sys, pulsar_ray
address, topic, mode = sys.argv[1:]
client = pulsar_ray.Client(address)
leader = client.create_producer(topic, access_mode=pulsar_ray.ProducerAccessMode[mode])
leader.send(b"old")
print("leads", flush=True)
sys.stdin.readline()
try:
    leader.send(b"late")
    print("sent", flush=True)
except pulsar_ray.PulsarException as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("leader", "successor"),
    [
        ("WaitForExclusive", "WaitForExclusive"),
        ("Exclusive", "ExclusiveWithFencing"),
        # Which mode evicts which, and what the evicted one is told, is shown without Ray for all of them.
        pytest.param("ExclusiveWithFencing", "Exclusive", marks=pytest.mark.long),
        pytest.param("Shared", "ExclusiveWithFencing", marks=pytest.mark.long),
    ],
)
def test_a_stopped_leader_that_wakes_up_is_fenced(
    broker: Broker, topic: str, leader: str, successor: str
) -> None:
    old = subprocess.Popen(
        [sys.executable, "-c", LEADER, broker.address, topic, leader],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert old.stdout is not None
        assert old.stdout.readline() == "leads\n"
        os.kill(old.pid, signal.SIGSTOP)
        client = broker.client()
        new = client.create_producer(topic, access_mode=ProducerAccessMode[successor])
        new.send(b"new")
        broker.kill(partition_actor(topic))
        new.send(b"newer")
        os.kill(old.pid, signal.SIGCONT)
        outcome, _ = old.communicate("go on\n", timeout=DEADLINE_S)
        assert outcome.strip() == "ProducerFenced"
        assert payloads(read_all(client, topic)) == [b"old", b"new", b"newer"]
        new.close()
    finally:
        old.kill()
        old.communicate()
