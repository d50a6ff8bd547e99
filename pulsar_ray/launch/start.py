"""Bring the broker up on this process's Ray cluster, and stop it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ray

from pulsar_ray.broker.catalog.founding import StartPermission
from pulsar_ray.config import Settings
from pulsar_ray.launch.clean_start import start_from_clean_process
from pulsar_ray.launch.kill_actors import kill_actors
from pulsar_ray.transport.actor_names import CONTROLLER, GATEWAY, NAMESPACE, beside_name, node_beside
from pulsar_ray.transport.ray_calls import translated
from pulsar_ray.transport.this_ray import (
    alive_hosts,
    draining_nodes,
    has_runtime_env,
    is_own_ray,
    is_ray_of_this_job,
    node_id,
    running_names,
)

STOP_TIMEOUT_S = 60.0
START_TIMEOUT_S = 60.0
DRAIN_S = 15.0


def start_broker(settings: Settings, word: StartPermission | None = None) -> dict[str, Any]:
    """Bring up the broker whose catalog lies here, or find it running.

    Returns the broker's description of itself.

    `word` allows more: to begin an empty one, to make a lost catalog anew. By default an empty one is begun
    on a Ray that this program started, also in its tasks, and elsewhere if `allow_founding` is set.

    Raises BrokerNotFounded, CatalogMissing, CatalogConflict, what is wrong with a data directory.
    """
    if word is None:
        word = StartPermission(may_found=settings.allow_founding or is_ray_of_this_job())
    # Detached actors inherit the environment and the import path of the job that made them, and outlive it.
    if has_runtime_env() or not is_own_ray():
        return start_from_clean_process(settings, word)
    # Only a process that brings up a broker loads its actors.
    from pulsar_ray.launch.bring_up import bring_up  # noqa: PLC0415

    return bring_up(settings, word)


def start_beside(cls: type[Any], name: str, *arguments: Any) -> Any:
    """Start a detached actor beside the broker, or find the one of that name.

    It runs on this node. Returns what its `ready` returns; raises what that raises, and then the actor is not
    there. It restarts by itself, and ends with `stop_broker`.
    """
    from pulsar_ray.actors.options import create  # noqa: PLC0415 - as above

    actor = create(cls, name, node_id(), *arguments)
    try:
        with translated(f"starting {name}"):
            return ray.get(actor.ready.remote(), timeout=START_TIMEOUT_S)
    except BaseException:
        ray.kill(actor)
        raise


def start_on_other_nodes(cls: type[Any], first: str, *arguments: Any) -> list[str]:
    """Start such an actor on each other node that has none, without waiting.

    Ends those of nodes that are gone. Returns the nodes where one was started; raises what Ray says.
    """
    from pulsar_ray.actors.options import create  # noqa: PLC0415 - as above

    with translated(f"looking for nodes without {first}"):
        alive = set(alive_hosts())
        served = {node for name in running_names() if (node := node_beside(first, name))}
        begun = sorted(alive - draining_nodes() - served - {node_id()})
        for node in begun:
            create(cls, beside_name(first, node), node, *arguments)
        # Ray would wait for ever for a node of that id.
        kill_actors(beside_name(first, node) for node in served - alive)
    return begun


def ready_beside(name: str) -> Any:
    """Return what `ready` of an actor beside the broker returns; None without one."""
    try:
        actor = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None
    with translated(f"asking {name}"):
        return ray.get(actor.ready.remote(), timeout=START_TIMEOUT_S)


def _drain(names: Iterable[str]) -> None:
    """Let actors answer what is under way, while the broker still serves."""
    ends = []
    for name in names:
        with suppress(ValueError):
            ends.append(ray.get_actor(name, namespace=NAMESPACE).shutdown.remote())
    # Those that do not answer are killed with what they have.
    if ends:
        ray.wait(ends, num_returns=len(ends), timeout=DRAIN_S)


def stop_broker() -> bool:
    """Let every actor write pending changes, and end them; False without a broker.

    Without a controller, whose node may be gone, what is left of the broker ends as in a crash.
    """
    try:
        controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except ValueError:
        return kill_actors(running_names())
    # The first one before the others, which it would make anew.
    _drain([GATEWAY])
    _drain(name for name in running_names() if node_beside(GATEWAY, name))
    with translated("stopping the broker"):
        ray.get(controller.shutdown.remote(), timeout=STOP_TIMEOUT_S)
    ray.kill(controller)
    kill_actors(name for name in running_names() if name != CONTROLLER)
    return True
