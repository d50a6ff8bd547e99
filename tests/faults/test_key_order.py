"""The order of each key while Key_Shared consumers join, leave and are killed at random."""

from __future__ import annotations

import itertools
import random
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import ray

from pulsar_ray import ConsumerType, InitialPosition
from pulsar_ray.testing.waiting import wait_until
from tests.faults.journal import read_journal
from tests.faults.keyed_consumer import KeyedConsumer
from tests.running_broker import Broker

KEYS = [f"key-{number}" for number in range(20)]
PROCESSES = 4
CRASHES = 4
DURATION_S = 10.0
STEP_S = 0.4
DEADLINE_S = 60.0


class Received(NamedTuple):
    """A message that a consumer was given."""

    at_ns: int
    life: str
    key: str
    number: int


class Group:
    """Processes that are consumers, or could be."""

    def __init__(self, broker: Broker, topic: str, directory: Path, rng: random.Random) -> None:
        self._address = broker.address
        self._topic = topic
        self._directory = directory
        self._rng = rng
        self._numbers = itertools.count()
        self._crashes = CRASHES
        self._spare: list[Any] = [self._start() for _ in range(PROCESSES)]
        self._members: dict[str, Any] = {}
        self.crashed: dict[str, int] = {}

    def _start(self) -> Any:
        number = next(self._numbers)
        actor: Any = ray.remote(num_cpus=0)(KeyedConsumer)
        journal = str(self._directory / f"{number}.journal")
        return actor.remote(self._address, self._topic, journal, self._rng.randrange(2**32))

    def step(self) -> str:
        """One consumer comes or goes, as chance will."""
        steps = [self.join] if self._spare else []
        if len(self._members) > 1:
            steps += [self.leave, self.crash] if self._crashes else [self.leave]
        return self._rng.choice(steps)()

    def join(self) -> str:
        life = f"c{next(self._numbers)}"
        process = self._spare.pop(0)
        ray.get(process.join.remote(life), timeout=DEADLINE_S)
        self._members[life] = process
        return f"{life} joined"

    def leave(self) -> str:
        life, process = self._take()
        ray.get(process.leave.remote(), timeout=DEADLINE_S)
        self._spare.append(process)
        return f"{life} left"

    def crash(self) -> str:
        self._crashes -= 1
        life, process = self._take()
        self.crashed[life] = time.monotonic_ns()
        ray.kill(process)
        self._spare.append(self._start())
        return f"{life} was killed"

    def _take(self) -> tuple[str, Any]:
        life = self._rng.choice(sorted(self._members))
        return life, self._members.pop(life)

    def end(self) -> None:
        """Everybody goes."""
        for process in [*self._members.values(), *self._spare]:
            ray.kill(process)

    def journals(self) -> tuple[list[Received], dict[tuple[str, str, int], int], dict[str, int]]:
        """What was received in the order of time; when what was acknowledged, and by when who was gone."""
        received: list[Received] = []
        acknowledged: dict[tuple[str, str, int], int] = {}
        gone = dict(self.crashed)
        for path in self._directory.glob("*.journal"):
            for record in read_journal(path):
                if record.kind == "left":
                    gone[record.values[0]] = record.at_ns
                    continue
                life, key, number = record.values
                if record.kind == "received":
                    received.append(Received(record.at_ns, life, key, number))
                else:
                    acknowledged[life, key, number] = record.at_ns
        return sorted(received), acknowledged, gone


class Publisher(threading.Thread):
    """Sends numbered messages of random keys until it is told to stop."""

    def __init__(self, broker: Broker, topic: str, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._producer = broker.client().create_producer(topic)
        self._rng = rng
        self._stops = threading.Event()
        self.sent = dict.fromkeys(KEYS, 0)

    def run(self) -> None:
        while not self._stops.wait(0.02):
            keys = [self._rng.choice(KEYS) for _ in range(self._rng.randint(1, 8))]
            numbers = [self._next(key) for key in keys]
            self._producer.send_many([str(number).encode() for number in numbers], partition_keys=keys)

    def _next(self, key: str) -> int:
        self.sent[key] += 1
        return self.sent[key] - 1

    def stop(self) -> None:
        self._stops.set()
        self.join()


def test_order_of_each_key_while_consumers_come_go_and_die(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    broker.client().subscribe(
        topic, "keyed", ConsumerType.KeyShared, initial_position=InitialPosition.Earliest
    ).close()
    group = Group(broker, topic, tmp_path, rng)
    publisher = Publisher(broker, topic, random.Random(rng.randrange(2**32)))
    try:
        print(group.join())
        publisher.start()
        end = time.monotonic() + DURATION_S
        while time.monotonic() < end:
            print(group.step())
            time.sleep(rng.random() * 2 * STEP_S)
        publisher.stop()
        expected = {(key, number) for key, count in publisher.sent.items() for number in range(count)}
        wait_until(
            lambda: {(r.key, r.number) for r in group.journals()[0]} == expected, DEADLINE_S, "all messages"
        )
        check_order(*group.journals())
    finally:
        group.end()


def check_order(
    received: list[Received], acknowledged: dict[tuple[str, str, int], int], gone: dict[str, int]
) -> None:
    """Nobody is given a message while another one works on an earlier one of its key, or before it came."""
    holders: dict[str, dict[int, str]] = {}
    last: dict[tuple[str, str], int] = {}
    for at_ns, life, key, number in received:
        of_key = holders.setdefault(key, {})
        assert number == 0 or number - 1 in of_key, f"{key}: {number} came before {number - 1}"
        assert number > last.get((life, key), -1), f"{key}: {life} was given {number} after {last[life, key]}"
        last[life, key] = number
        for earlier, holder in of_key.items():
            if earlier < number and holder != life:
                never = at_ns + 1
                done = min(acknowledged.get((holder, key, earlier), never), gone.get(holder, never))
                assert done <= at_ns, f"{key}: {life} was given {number} while {holder} had {earlier}"
        of_key[number] = life
