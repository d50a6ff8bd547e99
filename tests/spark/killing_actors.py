"""Kill processes of actors on this process's Ray, and be sure that there was one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import ray

from pulsar_ray.testing.waiting import wait_until
from tests.ending_processes import is_gone, kill

THERE_S = 120.0

Row = Mapping[str, Any]


def is_executor(actor: Row) -> bool:
    """Whether it is one of Spark's executors, whose JVM looks like every other of Ray's."""
    return str(actor["Name"]).startswith("raydp-executor-")


def is_reader(actor: Row) -> bool:
    """Whether it is one of those that read ranges."""
    return str(actor["ActorClassName"]).endswith("RangeReader")


def processes(wanted: Callable[[Row], bool]) -> list[psutil.Process]:
    """The processes of the actors wanted that serve now."""
    found = []
    for actor in ray._private.state.actors().values():
        if actor["State"] == "ALIVE" and wanted(actor):
            try:
                found.append(psutil.Process(actor["Pid"]))
            except psutil.NoSuchProcess:  # Ray has not noticed yet
                continue
    return [process for process in found if not is_gone(process)]


def kill_one(wanted: Callable[[Row], bool], what: str, chance: random.Random) -> psutil.Process:
    """SIGKILL the process of an actor wanted, once there is one, and wait for its end."""
    victim = chance.choice(wait_until(lambda: processes(wanted), THERE_S, what))
    kill(victim)
    wait_until(lambda: is_gone(victim), THERE_S, f"the end of {what}")
    return victim
