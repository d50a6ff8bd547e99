from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import ray
from pyspark.sql import SparkSession

from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.executor_blocks import executors_among
from pulsar_ray_spark.lost_executors import LostExecutors
from tests.spark.killing_actors import is_executor, kill_one

REPLACED_S = 60.0


class Master:
    """Executors as app master, Ray and driver see them, each in its own time."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.ids: dict[str, str | None] = {}
        """By the name of the actor; None while it starts."""
        self.counted = 0
        self.seen: set[str] = set()
        """By the driver."""
        self._again: set[str] = set()
        self._let_go: set[str] = set()
        self._next = 0
        self.ask_for(wanted)

    def registered(self) -> set[str]:
        return set(self.seen)

    def actors(self) -> set[str]:
        return set(self.ids)

    def end_actor(self, executor_id: str) -> None:
        self._forget(executor_id)

    def ask_for(self, total: int) -> None:
        for _ in range(total - self.counted):
            self.ids[self._new_id()] = None

    def register_all(self) -> None:
        """Those that start; one that Ray started again has another id, or is refused and ends."""
        for name in [name for name, executor_id in self.ids.items() if executor_id is None]:
            if name in self._again and self.counted >= self.wanted:
                del self.ids[name]
                continue
            self.ids[name] = executor_id = self._new_id() if name in self._again else name
            self.seen.add(executor_id)
            self.counted += 1

    def kill(self, name: str, chance: random.Random) -> list[Callable[[], None]]:
        """Ray starts the actor again; returns how app master and driver notice, in any order."""
        executor_id, self.ids[name] = self.ids[name], None
        self._again.add(name)
        if executor_id is None:
            # Half of these while they register, and so the app master counts them for ever.
            self.counted += chance.randint(0, 1)
            return []
        if executor_id == name:
            self._let_go.add(name)
        notices = [self._uncount, lambda: self.seen.discard(executor_id)]
        chance.shuffle(notices)
        return notices

    def collect_garbage(self) -> None:
        """Ray ends the actors of which the app master has let go."""
        for name in self._let_go & set(self.ids):
            self._forget(name)

    def _forget(self, name: str) -> None:
        executor_id = self.ids.pop(name)
        if executor_id is not None:
            self.seen.discard(executor_id)
            self.counted -= 1

    def _new_id(self) -> str:
        self._next += 1
        return str(self._next)

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
            for victim in chance.sample(sorted(master.ids), chance.randint(0, len(master.ids))):
                if victim not in master.ids:
                    continue  # replaced since
                for notice in master.kill(victim, chance):
                    notice()
                    if chance.random() < 0.5:
                        lost.look()
            if chance.random() < 0.5:
                master.register_all()
        for _ in range(3):
            lost.look()
            master.register_all()
        lost.look()
        master.collect_garbage()
        assert master.seen == set(master.ids.values())
        assert len(master.seen) == wanted


def test_an_executor_that_was_killed_before_it_registered_stays_where_another_is_lost() -> None:
    master = Master(2)
    lost = LostExecutors(master, 2)
    chance = random.Random(0)
    master.kill("1", chance)
    master.counted = 0
    master.register_all()
    lost.look()
    for notice in master.kill("2", chance):
        notice()
    lost.look()
    assert set(master.ids) == {"1", "4"}, "3 is what the first registered as"


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
    assert set(master.ids) == {"2"}


def raising(_: Master) -> set[str]:
    raise ConnectionError


def executors() -> set[str]:
    return set(executors_among(ray.util.list_named_actors()))


@pytest.mark.long
def test_a_session_keeps_its_executors_however_often_they_are_killed(spark: SparkSession) -> None:
    chance = random.Random(0)

    collect: Any = ray._private.internal_api.global_gc

    def is_replaced() -> bool:
        return executors().isdisjoint(before)

    for _ in range(2):
        before = executors()
        kill_one(is_executor, "the executor", chance)
        assert spark.range(1000, numPartitions=4).count() == 1000, "the action amid the loss"
        # As Ray asks for when its object store is full; it ended executors that Ray had started again.
        collect()
        wait_until(is_replaced, REPLACED_S, "another executor")
        collect()
        assert spark.range(1000, numPartitions=4).count() == 1000
        assert len(executors()) == 1
    assert ray.available_resources()["CPU"] == 1  # type: ignore[no-untyped-call]
