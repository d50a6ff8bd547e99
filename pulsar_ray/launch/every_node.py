"""Run a function once on every other node, by short tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.transport.this_ray import alive_hosts

LOOK_DEADLINE_S = 45.0

T = TypeVar("T")


def ask_other_nodes(here: str, function: Callable[..., T], *arguments: Any) -> tuple[list[T], list[str]]:
    """Return what `function(node_id, *arguments)` answers on all nodes but `here`.

    With them come the hosts that did not answer in time, went meanwhile, or could not run it.
    """
    hosts = alive_hosts()
    decorate: Any = ray.remote(num_cpus=0, max_retries=0)
    task = decorate(function)
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(
            node_id, *arguments
        ): node_id
        for node_id in hosts
        if node_id != here
    }
    answers: list[T] = []
    silent: list[str] = []
    done: Iterable[Any] = ()
    if asked:
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_DEADLINE_S)
        silent += [hosts[asked[answer]] for answer in late]
    for answer in done:
        try:
            answers.append(ray.get(answer))
        except ray.exceptions.RayError:
            silent.append(hosts[asked[answer]])
    return answers, silent
