"""The broker's actor classes as Ray sees them: `ray.remote` is applied here and nowhere else."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.actors.lane_actor import DATA
from pulsar_ray.transport.actor_names import NAMESPACE

# An attached client of another node has two calls under way, and a third one without a socket. There is
# room for all that its files allow; the number itself costs nothing.
DATA_GROUP = 40_000
# Before 2.44 Ray begins a thread for each call that a group may hold, also for coroutines.
DATA_GROUP_OF_THREADS = 240
FIRST_RAY_WITHOUT_THREADS = (2, 44)
CTL_GROUP = 16

_CTL_METHODS = (
    "probe", "stats", "health", "call", "apply_policies", "idle", "retire", "trim_now", "shutdown",
)  # fmt: skip
_DATA_METHODS = ("attach", "exchange", "stay", "watch", "await_wake", "watch_client")


@cache  # Ray would pickle and export the class anew for each actor
def _remote(cls: Any) -> Any:
    for group, names in (("ctl", _CTL_METHODS), (DATA, _DATA_METHODS)):
        for name in names:
            if hasattr(cls, name):
                setattr(cls, name, ray.method(concurrency_group=group)(getattr(cls, name)))
    decorate: Any = ray.remote
    return decorate(concurrency_groups={DATA: data_group(ray.__version__), "ctl": CTL_GROUP})(cls)


class _Spare:
    """Does nothing: it is ended before it begins."""


def spare(node_id: str) -> Any:
    """Create an actor for the sake of its process.

    Ended before that is up, it leaves the process to Ray's idle ones, of which the next actor takes one.
    """
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    made: Any = _remote(_Spare)
    return made.options(num_cpus=0, scheduling_strategy=strategy).remote()


def data_group(ray_version: str) -> int:
    """The number of sessions' calls that an actor holds at once."""
    major, minor = ray_version.split(".")[:2]
    has_threads = (int(major), int(minor)) < FIRST_RAY_WITHOUT_THREADS
    return DATA_GROUP_OF_THREADS if has_threads else DATA_GROUP


def create(cls: type[Any], name: str, node_id: str | None, *args: Any) -> Any:
    """Create the detached actor, or return the one that has the name.

    It needs no CPU, restarts without limit, and no call is ever repeated by Ray: retries reorder and repeat.
    """
    strategy: Any = "DEFAULT"
    if node_id is not None:
        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return (
        _remote(cast("Any", cls))
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=strategy,
        )
        .remote(*args)
    )
