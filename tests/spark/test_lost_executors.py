from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import ray
from pyspark.sql import SparkSession

from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.lost_executors import LostExecutors, executor_actors
from tests.spark.killing_actors import is_executor, kill_one

REPLACED_S = 60.0


class Master:
    """Executors as app master, Ray and driver see them, each in its own time."""

    def __init__(self, wanted: int) -> None:
        self.alive: dict[str, bool] = {}
        """Actors by id, and whether Ray has started each again."""
        self.counted = 0
        self.seen: set[str] = set()
        """By the driver."""
        self._next = 0
        self.ask_for(wanted)

    def registered(self) -> set[str]:
        return set(self.seen)

    def actors(self) -> set[str]:
        return set(self.alive)

    def is_second_life(self, executor_id: str) -> bool:
        return self.alive[executor_id]

    def end_actor(self, executor_id: str) -> None:
        del self.alive[executor_id]

    def ask_for(self, total: int) -> None:
        for _ in range(total - self.counted):
            self.alive[str(self._next)] = False
            self._next += 1

    def register_all(self) -> None:
        """Those started for the first time; the app master refuses others once it counts enough."""
        for executor_id, is_second_life in self.alive.items():
            if not is_second_life and executor_id not in self.seen:
                self.seen.add(executor_id)
                self.counted += 1

    def kill(self, executor_id: str, chance: random.Random) -> list[Callable[[], None]]:
        """Ray starts the actor again; returns how app master and driver notice, in any order."""
        self.alive[executor_id] = True
        if executor_id in self.seen:
            notices = [self._uncount, lambda: self.seen.discard(executor_id)]
            chance.shuffle(notices)
            return notices
        # Half of the others while they register, and so the app master counts them for ever.
        self.counted += chance.randint(0, 1)
        return []

    def _uncount(self) -> None:
        self.counted -= 1


def test_each_lost_executor_is_replaced_once_whoever_notices_first() -> None:
    seed = random.randrange(1 << 32)
    print(f"{seed = }")
    chance = random.Random(seed)
    for wanted in (1, 2, 5):
        master = Master(wanted)
        lost = LostExecutors(master, wanted)
        master.register_all()
        for _ in range(40):
            lost.look()
            for victim in chance.sample(sorted(master.alive), chance.randint(0, len(master.alive))):
                if victim not in master.alive:
                    continue  # replaced since
                for notice in master.kill(victim, chance):
                    notice()
                    if chance.random() < 0.5:
                        lost.look()
            if chance.random() < 0.5:
                master.register_all()
        lost.look()
        master.register_all()
        lost.look()
        assert master.seen == master.actors()
        assert len(master.seen) == wanted


def test_a_look_that_fails_has_not_forgotten_the_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(1)
    lost = LostExecutors(master, 1)
    master.register_all()
    lost.look()
    master.seen.clear()  # one that stands still: its actor is there
    with monkeypatch.context() as broken:
        broken.setattr(Master, "actors", raising)
        with pytest.raises(ConnectionError):
            lost.look()
    lost.look()
    assert "0" not in master.alive
    assert len(master.alive) == 1


def raising(_: Master) -> set[str]:
    raise ConnectionError


def test_a_session_keeps_its_executors_however_often_they_are_killed(spark: SparkSession) -> None:
    chance = random.Random(0)

    collect: Any = ray._private.internal_api.global_gc

    def is_replaced() -> bool:
        return set(executor_actors()).isdisjoint(before)

    for _ in range(2):
        before = executor_actors()
        kill_one(is_executor, "the executor", chance)
        assert spark.range(1000, numPartitions=4).count() == 1000, "the action amid the loss"
        # As Ray asks for when its object store is full; it ended executors that Ray had started again.
        collect()
        wait_until(is_replaced, REPLACED_S, "another executor")
        collect()
        assert spark.range(1000, numPartitions=4).count() == 1000
        assert len(executor_actors()) == 1
    assert ray.available_resources()["CPU"] == 1  # type: ignore[no-untyped-call]
