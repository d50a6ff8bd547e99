"""Processes that end in order have not crashed: the message that they had in hand has no failure more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import ray

from pulsar_ray import Client, ConsumerType
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.received.message import Message
from tests.running_broker import Broker

WAIT_S = 60
WAIT_MS = WAIT_S * 1000
PROGRAM = """
import asyncio, os, signal, sys
import pulsar_ray, pulsar_ray.asyncio
from pulsar_ray import ConsumerType

address, topic, how = sys.argv[1:]
if how == "own handler":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

async def take():
    consumer = await pulsar_ray.asyncio.Client(address).subscribe(topic, "s", ConsumerType.Shared)
    message = await consumer.receive()
    print(message.data(), flush=True)
    if how == "asyncio SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

if how.startswith("asyncio"):
    asyncio.run(take())
else:
    consumer = pulsar_ray.Client(address).subscribe(topic, "s", ConsumerType.Shared)
    message = consumer.receive()
    print(message.data(), flush=True)
    if how == "left Ray":
        import ray
        ray.shutdown()
    elif how == "exception":
        raise RuntimeError("uncaught")
    elif how in ("SIGTERM", "own handler"):
        if how == "own handler":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Worker:
    """An actor with a message in hand."""

    def take(self, address: str, topic: str) -> tuple[int, int]:
        """The process, and how often the message has failed."""
        self._consumer = subscribe(Client(address), topic)
        self._message = self._consumer.receive(WAIT_MS)
        return os.getpid(), self._message.failures

    def leave(self) -> None:
        exit_actor: Any = ray.actor.exit_actor
        exit_actor()


def subscribe(client: Client, topic: str) -> Consumer:
    return client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)


def publish(client: Client, topic: str) -> None:
    subscribe(client, topic).close()
    client.create_producer(topic).send(b"healthy")


def taken_again(client: Client, topic: str) -> Message:
    consumer = subscribe(client, topic)
    message = consumer.receive(WAIT_MS)
    consumer.close()
    return message


@pytest.mark.parametrize(
    ("how", "failed"),
    [
        ("SIGTERM", 0),
        pytest.param("exit_actor", 0, marks=pytest.mark.long),
        pytest.param("out of scope", 0, marks=pytest.mark.long),
        pytest.param("ray.kill", 0, marks=pytest.mark.long),
        ("SIGKILL", 1),
    ],
)
def test_an_actor_that_is_scaled_away_has_not_crashed(
    broker: Broker, client: Client, topic: str, how: str, failed: int
) -> None:
    publish(client, topic)
    for ended in range(2):
        remote: Any = ray.remote(num_cpus=0, max_concurrency=2)  # type: ignore[call-overload]
        worker = remote(Worker).remote()
        process, failures = ray.get(worker.take.remote(broker.address, topic), timeout=WAIT_S)
        assert failures == failed * ended
        if how.startswith("SIG"):
            os.kill(process, signal.Signals[how])
        elif how == "ray.kill":
            ray.kill(worker)
        elif how == "exit_actor":
            worker.leave.remote()
        del worker
    message = taken_again(client, topic)
    assert (message.data(), message.failures) == (b"healthy", 2 * failed)


@pytest.mark.parametrize(
    ("how", "failures"),
    [
        ("the end of the program", 0),
        *(
            pytest.param(how, 0, marks=pytest.mark.long)
            for how in ("left Ray", "exception", "own handler", "asyncio end", "asyncio SIGTERM")
        ),
        ("SIGTERM", 0),
        ("SIGKILL", 1),
    ],
)
def test_a_program_that_ends_by_itself_has_not_crashed(
    broker: Broker, client: Client, topic: str, how: str, failures: int
) -> None:
    publish(client, topic)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.address, topic, how],
        check=False,
        capture_output=True,
        text=True,
        timeout=4 * WAIT_S,
    )
    assert ran.stdout == "b'healthy'\n", ran.stderr
    message = taken_again(client, topic)
    assert (message.data(), message.failures) == (b"healthy", failures), ran.stderr
