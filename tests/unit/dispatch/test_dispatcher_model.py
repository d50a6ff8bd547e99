"""Random steps against the naive model: nothing lost, nothing at two consumers, counts and order right.

Crashes make suspects; `test_blame.py` has what becomes of them.
"""

from __future__ import annotations

import os

import pytest

from pulsar_ray.dispatch.consumer import ConsumerExit
from pulsar_ray.model.enums import ConsumerType
from tests.unit.dispatch.world import World

SEEDS = pytest.mark.parametrize("seeds", [15, pytest.param(100, marks=pytest.mark.long)])
STEPS = 250
WEIGHTS = {
    "publish": 6.0,
    "dispatch": 10.0,
    "arrive": 10.0,
    "receive": 10.0,
    "acknowledge": 7.0,
    "negative_acknowledge": 3.0,
    "report": 5.0,
    "redeliver": 1.0,
    "add": 2.0,
    "close": 1.0,
    "crash": 1.0,
    "detach": 1.0,
    "reattach": 2.0,
    "wait": 1.0,
    "seek": 0.4,
    "flush": 2.0,
    "restart": 0.6,
}


def run(seed: int, consumer_type: ConsumerType, index_acks: bool) -> None:
    world = World(seed, consumer_type, index_acks)
    history: list[str] = []
    try:
        for _ in range(STEPS):
            step = world.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            history.append(step)
            take_step(world, step)
            world.validate()
        history.append("drain")
        world.drain()
    except BaseException:
        print(
            f"seed {seed}, {consumer_type!s}, index acks {index_acks}: {len(history)} steps, {history[-12:]}"
        )
        raise


def take_step(world: World, step: str) -> None:
    client = world.some_client()
    if step in ("publish", "dispatch", "seek", "flush", "restart"):
        getattr(world, step)()
    elif step == "add":
        world.add_client()
    elif step == "wait":
        world.wait_for_the_missing()
    elif step == "reattach":
        lost = [c for c in world.clients.values() if not c.is_attached]
        if lost:
            world.reattach(world.random.choice(lost))
    elif client is None:
        return
    elif step == "close":
        world.leave(client, ConsumerExit.CLOSED)
    elif step == "crash":
        world.leave(client, ConsumerExit.CRASHED)
    else:
        getattr(world, step)(client)


@pytest.mark.parametrize("index_acks", [False, True], ids=["whole-batches", "index-acks"])
@SEEDS
@pytest.mark.parametrize(
    "consumer_type",
    [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared],
    ids=str,
)
def test_random_steps_agree_with_the_naive_model(
    consumer_type: ConsumerType, index_acks: bool, seeds: int
) -> None:
    for seed in range(int(os.environ.get("PULSAR_RAY_TEST_SEEDS", seeds))):
        run(seed, consumer_type, index_acks)
