"""The broker's actor classes as Ray sees them: `ray.remote` is applied here and nowhere else."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.actors.lane_actor import DATA
from pulsar_ray.transport.actor_names import NAMESPACE

DATA_GROUP = 1000
CTL_GROUP = 16

_CTL_METHODS = ("probe", "stats", "call", "shutdown")
_DATA_METHODS = ("attach", "exchange", "stay", "watch")


def _remote(cls: type[Any]) -> Any:
    for group, names in (("ctl", _CTL_METHODS), (DATA, _DATA_METHODS)):
        for name in names:
            if hasattr(cls, name):
                setattr(cls, name, ray.method(concurrency_group=group)(getattr(cls, name)))
    decorate: Any = ray.remote
    return decorate(concurrency_groups={DATA: DATA_GROUP, "ctl": CTL_GROUP})(cls)


def create(cls: type[Any], name: str, node_id: str | None, *args: Any) -> Any:
    """Create the detached actor, or return the one that has the name.

    It needs no CPU, restarts without limit, and no call is ever repeated by Ray: retries reorder and repeat.
    """
    strategy: Any = "DEFAULT"
    if node_id is not None:
        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return (
        _remote(cls)
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
