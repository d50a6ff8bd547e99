"""All that moves dead letters is killed while they move: none is lost, no good message is among them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pulsar_ray
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from tests.faults.conftest import DEADLINE_S
from tests.faults.failing_consumer import SUBSCRIPTION, is_poison
from tests.faults.reading import numbered
from tests.running_broker import Broker, dispatcher_actor, partition_actor

MESSAGES = 300
ROOT = Path(__file__).parents[2]


class Consumers:
    """Processes that are killed and started again; their journals are the messages that they consumed."""

    def __init__(self, address: str, topic: str, journal: Path) -> None:
        self._command = [sys.executable, "-m", "tests.faults.failing_consumer", address, topic, str(journal)]
        self._running = [self._start(), self._start()]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=ROOT)

    def kill_one(self, index: int) -> None:
        """Kill a process, and start another."""
        self._end(self._running[index])
        self._running[index] = self._start()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)

    def close(self) -> None:
        for process in self._running:
            self._end(process)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
def consumers(broker: Broker, topic: str, journal: Path) -> Iterator[Consumers]:
    started = Consumers(broker.address, topic, journal)
    yield started
    started.close()


@pytest.mark.long
def test_every_message_is_consumed_or_a_dead_letter(
    broker: Broker, topic: str, consumers: Consumers, journal: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed: {seed}")
    rng = random.Random(seed)
    client = broker.client(operation_timeout_seconds=120)
    letters = f"{TopicName.parse(topic).full}-{SUBSCRIPTION}-DLQ"
    looking = client.subscribe(letters, "looks", initial_position=pulsar_ray.InitialPosition.Earliest)
    producer = client.create_producer(topic, send_timeout_millis=0)
    dead: set[bytes] = set()

    def look(count: int) -> None:
        def have_come() -> bool:
            try:
                while True:
                    message = looking.receive(50)
                    dead.add(message.data())
                    looking.acknowledge(message)
            except pulsar_ray.Timeout:
                return len(dead) >= count

        wait_until(have_come, DEADLINE_S, f"{count} dead letters")

    kills: list[Callable[[], object]] = [
        lambda: broker.kill(dispatcher_actor(topic, SUBSCRIPTION)),
        lambda: broker.kill(partition_actor(topic)),
        lambda: broker.kill(partition_actor(letters)),
        lambda: consumers.kill_one(0),
        lambda: consumers.kill_one(1),
    ]
    rng.shuffle(kills)
    share = MESSAGES // len(kills)
    for number, kill in enumerate(kills):
        producer.send_many(numbered(share, number * share))
        look(len(dead) + rng.randrange(share // 6))
        kill()
    poison = {data for data in numbered(MESSAGES) if is_poison(data)}
    look(len(poison))
    assert dead == poison
    with pulsar_ray.Admin(broker.address) as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"][SUBSCRIPTION]["msgBacklog"] == 0,
            DEADLINE_S,
            "the acknowledgments",
        )
    assert set(journal.read_bytes().split()) | dead == set(numbered(MESSAGES))
