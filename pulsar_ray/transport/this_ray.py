"""The Ray that this process is on: its nodes, actors and this process's part."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import psutil
import ray

from pulsar_ray.transport.actor_names import NAMESPACE

CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Bytes, or no number if there is no limit."""

_RAYLET_ANSWER_S = 1.0
_HEAD_RESOURCE = "node:__internal_head__"
"""Ray gives it to its head node alone."""


def is_driver() -> bool:
    """Whether this process is a program that joined Ray, not one of Ray's own workers."""
    return bool(ray._private.worker.global_worker.mode == ray.SCRIPT_MODE)


def worker_place() -> str:
    """The ids of this worker's node and process, as node/worker; "" of others.

    Behind `ray.shutdown()` a question to Ray would start another one.
    """
    if ray._private.worker.global_worker.mode != ray.WORKER_MODE:
        return ""
    context = ray.get_runtime_context()
    return f"{context.get_node_id()}/{context.get_worker_id()}"


def worker_ended(node_id: str, worker_id: str) -> bool | None:
    """Whether Ray ended a worker on purpose, or its whole node died.

    None while it is not known to have ended. False if it died by itself: of a signal, of an error, for want
    of memory.
    """
    nodes: Any = ray.nodes
    if any(node["NodeID"] == node_id and not node["Alive"] for node in nodes()):
        return True
    state: Any = ray._private.state.state
    if hasattr(state, "_connect_and_get_accessor"):
        accessor = state._connect_and_get_accessor()
    else:
        state._check_connected()
        accessor = state.global_state_accessor
    generated: Any = importlib.import_module("ray.core.generated.gcs_pb2")
    types: Any = importlib.import_module("ray.core.generated.common_pb2").WorkerExitType
    told = accessor.get_worker_info(ray.WorkerID.from_hex(worker_id))
    worker = generated.WorkerTableData.FromString(told) if told else None
    if worker is None or worker.is_alive:
        return None
    return worker.exit_type in (types.Value("INTENDED_SYSTEM_EXIT"), types.Value("INTENDED_USER_EXIT"))


def raylet_is_gone(node_id: str) -> bool:
    """Whether a node that Ray knows has died: its raylet takes no connection."""
    nodes: Any = ray.nodes
    for node in nodes():
        if node["NodeID"] == node_id:
            address = (node["NodeManagerAddress"], node["NodeManagerPort"])
            try:
                socket.create_connection(address, _RAYLET_ANSWER_S).close()
            except OSError:
                return True
    return False


def node_address() -> str:
    """The address other nodes reach this one at."""
    get: Any = ray.util.get_node_ip_address
    return str(get())


def node_id() -> str:
    """The Ray node this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def head_node_id() -> str:
    """The id of Ray's head node; "" if none is there."""
    nodes: Any = ray.nodes
    heads = [node["NodeID"] for node in nodes() if node["Alive"] and _HEAD_RESOURCE in node["Resources"]]
    return str(heads[0]) if heads else ""


def node_memory_bytes() -> int:
    """The memory of this node, or what its container may have of it."""
    total = psutil.virtual_memory().total
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(limit.read_text()))
    return total


def available_memory_bytes() -> int:
    """The memory of this node that is not in use."""
    return min(psutil.virtual_memory().available, node_memory_bytes())


def session_directory() -> Path:
    """Ray's directory for this session on this node.

    It is short enough for socket paths, and gone with the session.
    """
    node: Any = ray._private.worker.global_worker.node
    return Path(node.get_session_dir_path())


def raylet_socket() -> str:
    """The path of the socket by which this process is tied to its node's raylet."""
    node: Any = ray._private.worker.global_worker.node
    return str(node.raylet_socket_name)


def alive_hosts() -> dict[str, str]:
    """The host names of the nodes that are there, by node id."""
    nodes: Any = ray.nodes
    return {node["NodeID"]: node["NodeManagerHostname"] for node in nodes() if node["Alive"]}


def dashboard_url() -> str:
    """Return where Ray's dashboard answers; "" without one."""
    node: Any = ray._private.worker._global_node
    address = str(getattr(node, "webui_url", None) or "")
    return f"http://{address}" if address and "://" not in address else address


def metrics_port() -> int:
    """The port of this node's metrics; 0 if its Ray exports none."""
    nodes: Any = ray.nodes
    here = node_id()
    ports = [int(node.get("MetricsExportPort") or 0) for node in nodes() if node["NodeID"] == here]
    return max(ports[0], 0) if ports else 0


def draining_nodes() -> set[str]:
    """The ids of the nodes that Ray drains.

    Ray starts nothing more there, and they will go.
    """
    state: Any = ray._private.state.state
    try:
        return set(state.get_draining_nodes())
    except AttributeError:  # a Ray that does not say it
        return set()


def is_own_ray() -> bool:
    """Whether this very process started the Ray that it is on.

    By `ray.init()`; that Ray ends with the process.
    """
    node: Any = ray._private.worker._global_node
    return node is not None and bool(node.is_head())


def is_ray_of_this_job() -> bool:
    """Whether the program that this process works for started the Ray that it is on.

    In a task or actor that program is the job's driver; the name of a Ray session ends with the process that
    began it.
    """
    if is_own_ray():
        return True
    if is_driver():
        return False
    here: Any = ray.get_runtime_context()
    return here.get_job_id() in _jobs_that_began_this_ray()


def is_ray_of_a_program() -> bool:
    """Whether a program began the Ray that this process is on.

    It did so by `ray.init()`, and that Ray ends with the program; one of `ray start` does not.
    """
    return is_own_ray() or bool(_jobs_that_began_this_ray())


def _jobs_that_began_this_ray() -> set[str]:
    context = ray.get_runtime_context()
    state: Any = ray._private.state.state
    started = (context.gcs_address.rpartition(":")[0], session_directory().name.rpartition("_")[2])
    return {
        job["JobID"]
        for job in state.job_table()
        if (job.get("DriverIPAddress"), str(job.get("DriverPid"))) == started
    }


def has_runtime_env() -> bool:
    """Whether the actors that this process starts would inherit a runtime environment."""
    return bool(ray.get_runtime_context().runtime_env)


def is_running(handle: Any) -> bool:
    """Whether the actor has started.

    Not one that is being created or restarted, or is dead.
    """
    return _state(handle) == "ALIVE"


def is_starting(handle: Any) -> bool:
    """Whether the actor is being created or restarted."""
    return _state(handle) in ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")


def _state(handle: Any) -> str:
    state: Any = ray._private.state
    return str(state.actors(actor_id(handle)).get("State"))


def actor_id(handle: Any) -> str:
    """The id of a handle's actor, which tells it from others of its name."""
    return str(handle._actor_id.hex())


def was_restarted() -> bool:
    """Whether Ray has restarted the actor of this process."""
    with warnings.catch_warnings():
        # The property calls a deprecated sibling of its own.
        warnings.simplefilter("ignore")
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def loop_of_group(group: str) -> tuple[asyncio.AbstractEventLoop, threading.Thread] | None:
    """The loop and thread that run this actor's calls of a concurrency group.

    None if Ray hides them.
    """
    try:
        worker: Any = ray._private.worker.global_worker
        raylet: Any = ray._raylet
        nobody = raylet.PythonFunctionDescriptor("", "", "")
        loop, thread = worker.core_worker.get_event_loop(nobody, group)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return (loop, thread) if loop.is_running() else None


def allow_blocking_calls() -> None:
    """Silence Ray's advice for callers that block its loops.

    Broker actors call other actors from threads made for that.
    """
    ray._private.worker.blocking_get_inside_async_warned = True


def running_names() -> list[str]:
    """The names of the broker's actors that run, start or restart; one Ray call."""
    # The calling actor's own namespace is that of the job that made it.
    actors: list[dict[str, str]] = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]


def ray_job() -> str:
    """The name of this process's connection to Ray; "" if it has none.

    Each `ray.init` makes another one.

    The number of the job alone is not enough: every Ray counts from one.
    """
    worker: Any = ray._private.worker.global_worker
    if not worker.connected:
        return ""
    address = getattr(getattr(worker, "gcs_client", None), "address", "")
    return f"{address} {worker.current_job_id.hex()}"
