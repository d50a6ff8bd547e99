"""Actors that leave all the time, and that are killed and frozen on their way: nothing is lost or doubled."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import psutil
import pytest

import pulsar_ray
from pulsar_ray import ConsumerType
from pulsar_ray.errors import Timeout
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import CONTROLLER
from pulsar_ray.transport.this_ray import running_names
from tests.ending_processes import is_gone
from tests.faults import kill_points
from tests.faults.chaos import Chaos
from tests.faults.journal import Id, id_of
from tests.faults.reading import numbered, payloads, read_all, receive_acknowledged, receive_quiet, subscribe
from tests.running_broker import Broker, dispatcher_actor, partition_actor

SECONDS = float(os.environ.get("FAULTS_SECONDS", "40"))
DEADLINE_S = 90.0
IDLE_S = 0.3
LONGEST_PAUSE_S = 20.0
CARRIERS = ("auto", "ray")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(
        tmp_path_factory.mktemp("broker"),
        idle_actor_passivation_seconds=IDLE_S,
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
    )
    try:
        yield started
    finally:
        started.close()


def actors_of(topic: str) -> list[str]:
    return [name for name in running_names() if f"/{topic}" in name]


def wait_asleep(topic: str) -> None:
    wait_until(lambda: not actors_of(topic), DEADLINE_S, f"the sleep of {topic}")


def leave_nothing_open(client: pulsar_ray.Client, topic: str) -> None:
    """Use the topic, and close all: three messages, of which one is acknowledged."""
    consumer = subscribe(client, topic, ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    for value in numbered(3):
        producer.send(value)
    assert receive_acknowledged(consumer, 1) == [b"0"]
    consumer.close()
    producer.close()


@pytest.mark.long
@pytest.mark.parametrize("who", ["partition", "dispatcher"])
@pytest.mark.parametrize(
    "place", [kill_points.before_farewell, kill_points.inside_farewell, kill_points.behind_farewell]
)
def test_an_actor_dies_as_it_leaves(
    broker: Broker, topic: str, who: str, place: kill_points.Installer
) -> None:
    client = broker.client()
    consumer = subscribe(client, topic, ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    for value in numbered(3):
        producer.send(value)
    assert receive_acknowledged(consumer, 1) == [b"0"]
    name = partition_actor(topic) if who == "partition" else dispatcher_actor(topic, "sub")
    process = psutil.Process(broker.pid(name))
    broker.run_in(name, place)
    consumer.close()
    producer.close()
    wait_until(lambda: is_gone(process), DEADLINE_S, "the death of the actor")
    use_again(client, topic)


@pytest.mark.long
@pytest.mark.parametrize("place", [kill_points.before_the_end, kill_points.before_the_note])
def test_the_controller_dies_as_actors_leave(
    broker: Broker, topic: str, place: kill_points.Installer
) -> None:
    client = broker.client()
    former = broker.pid(CONTROLLER)
    process = psutil.Process(former)
    leave_nothing_open(client, topic)
    broker.run_in(CONTROLLER, place)
    wait_until(lambda: is_gone(process), DEADLINE_S, "the death of the controller")
    use_again(client, topic)


@pytest.mark.long
def test_the_controller_freezes_as_actors_leave(broker: Broker, topic: str) -> None:
    client = broker.client()
    leave_nothing_open(client, topic)
    pid = broker.freeze(CONTROLLER)
    try:
        use_again(client, topic)
    finally:
        broker.thaw(pid)


def use_again(client: pulsar_ray.Client, topic: str) -> None:
    """What was stored and acknowledged before is as it was, and the topic goes on."""
    client.create_producer(topic).send(b"3")
    consumer = subscribe(client, topic, ack_receipt_enabled=True)
    assert receive_acknowledged(consumer, 3) == numbered(3, 1)
    assert receive_quiet(consumer) == []
    assert payloads(read_all(client, topic)) == numbered(4)
    consumer.close()


class Publishing(threading.Thread):
    """Sends numbers, with pauses in which actors go to sleep."""

    def __init__(self, client: pulsar_ray.Client, topic: str, rng: Random, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._client, self._topic, self._rng, self._stop_event = client, topic, rng, stop
        self.confirmed: dict[bytes, Id] = {}
        self.sleeps = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error
            raise

    def _run(self) -> None:
        number = 0
        while not self._stop_event.is_set():
            producer = self._client.create_producer(self._topic, send_timeout_millis=0)
            for _ in range(self._rng.randrange(1, 20)):
                value = b"%d" % number
                self.confirmed[value] = id_of(producer.send(value))
                number += 1
                self._stop_event.wait(self._rng.choice([0.0, 0.0, 0.01, 2 * IDLE_S]))
            if self._rng.random() < 0.5:
                producer.close()
            self._stop_event.wait(self._rng.uniform(0, 3 * IDLE_S))
            if self._rng.random() < 0.5:
                self._wait_asleep()

    def _wait_asleep(self) -> None:
        """Wait until the topic's actors sleep, unless they are struck for too long."""
        end = time.monotonic() + LONGEST_PAUSE_S
        while time.monotonic() < end and not self._stop_event.wait(0.1):
            if not actors_of(self._topic):
                self.sleeps += 1
                return


class Consuming(threading.Thread):
    """Receives and acknowledges durably; comes and goes."""

    def __init__(
        self, client: pulsar_ray.Client, topic: str, rng: Random, is_done: Callable[[int], bool]
    ) -> None:
        super().__init__(daemon=True)
        self._client, self._topic, self._rng, self._is_done = client, topic, rng, is_done
        self.received: list[bytes] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error
            raise

    def _run(self) -> None:
        while not self._is_done(len(self.received)):
            consumer = subscribe(
                self._client, self._topic, consumer_type=ConsumerType.Exclusive, ack_receipt_enabled=True
            )
            end = time.monotonic() + self._rng.uniform(1, 10)
            while time.monotonic() < end and not self._is_done(len(self.received)):
                try:
                    message = consumer.receive(1000)
                except Timeout:
                    continue
                self.received.append(message.data())
                consumer.acknowledge(message)
            consumer.close()
            time.sleep(self._rng.uniform(0, 5 * IDLE_S))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_nothing_is_lost_or_doubled_while_actors_come_and_go(
    broker: Broker, topic: str, carrier: str
) -> None:
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbelow(10**6))
    print(f"FAULTS_SEED={seed}")
    clients = [broker.client(transport=carrier) for _ in range(2)]
    for client in clients:
        client.operation_timeout_s = 2 * DEADLINE_S
    stop = threading.Event()
    subscribe(clients[1], topic).close()
    publishing = Publishing(clients[0], topic, Random(seed), stop)

    def is_done(received: int) -> bool:
        return not publishing.is_alive() and received >= len(publishing.confirmed)

    consuming = Consuming(clients[1], topic, Random(seed + 1), is_done)
    publishing.start()
    consuming.start()
    # Not the controller: a new one lets no partition leave for a minute.
    chaos = Chaos(broker, seed, [partition_actor(topic), dispatcher_actor(topic, "sub")], [])
    chaos.run(SECONDS)
    wait_until(lambda: publishing.sleeps, DEADLINE_S, "a sleep of the topic")
    stop.set()
    for thread in (publishing, consuming):
        thread.join(3 * DEADLINE_S)
        assert thread.error is None
        assert not thread.is_alive()
    stored = {message.payload: message.place for message in read_all(clients[0], topic)}
    assert list(stored) == numbered(len(stored))
    assert stored == publishing.confirmed
    assert consuming.received == numbered(len(stored))
    for client in clients:
        client.close()
    wait_asleep(topic)
