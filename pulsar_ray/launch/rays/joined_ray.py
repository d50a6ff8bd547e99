"""Joining a Ray that others started, and leaving it once it has gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import ray

from pulsar_ray.errors import PulsarException
from pulsar_ray.launch.listeners import takers_on_loopback
from pulsar_ray.transport.ray_calls import RAY_CALLS

_LOOK_S = 0.05

_RAY_CODE = os.path.dirname(ray.__file__) + os.sep


LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With "0" Ray takes the loopback interface for a node's address.

It binds each of its ports there then. Made for other systems, the variable counts on Linux too.
"""


@contextlib.contextmanager
def reaching(address: str) -> Iterator[None]:
    """Let `ray.init` connect to host:port where that Ray listens on the loopback interface alone.

    Ray puts this machine's outward address in the place of a loopback one, where nobody listens then, or
    somebody else.
    """
    if not takers_on_loopback(address):
        yield
        return
    was_outward = keep_to_loopback()
    try:
        yield
    finally:
        _constants().ENABLE_RAY_CLUSTER = was_outward


def keep_to_loopback() -> bool:
    """Let this process's Ray take the loopback interface for the address of this node.

    Ray read its variable when it was imported. Returns whether it took the outward address before.
    """
    was_outward = bool(getattr(_constants(), "ENABLE_RAY_CLUSTER", True))
    _constants().ENABLE_RAY_CLUSTER = False
    return was_outward


def _constants() -> Any:
    return ray._private.ray_constants


def share_auth_mode(mode: str) -> None:
    """Connect as the processes of a cluster with this RAY_AUTH_MODE do; before `ray.init`."""
    if os.environ.get("RAY_AUTH_MODE") != mode:
        os.environ["RAY_AUTH_MODE"] = mode
        # Ray read the variable when it was imported.
        raylet: Any = ray._raylet
        raylet.Config.initialize("")


def knows_tokens() -> bool:
    """Whether this Ray can ask for a token, as it can from 2.52 on."""
    return hasattr(ray._raylet, "AuthenticationTokenLoader")


def has_auth_token() -> bool:
    """Whether this user has a token for Ray clusters.

    With one, `ray start` asks for it.
    """
    raylet: Any = ray._raylet
    return knows_tokens() and bool(
        raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    )


def head_answers(address: str, wait_s: float) -> bool:
    """Whether Ray's head at host:port answers anything within `wait_s` seconds.

    Where its process stands still, connections are taken and nothing else, and `ray.init` waits for minutes.
    """
    has_answered = threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):  # left to `ray.init`, which says more
            raylet: Any = ray._raylet
            raylet.GcsClient(address=address).internal_kv_get(b"session_name", b"session")
        has_answered.set()

    # Nothing ends a call that hangs: its thread stays until the process ends.
    threading.Thread(target=ask, name="pulsar-ray-head", daemon=True).start()
    return has_answered.wait(wait_s)


def leave_ray(
    wait_s: float, why: PulsarException | None = None, then: Callable[[], None] = lambda: None
) -> bool:
    """Leave a Ray that has gone, once no thread is inside it.

    Returns False if a thread stays inside for `wait_s` seconds. Else `then` is called before anybody is let
    in again; calls meanwhile raise `why`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        left = max(0.0, deadline - time.monotonic())
        with RAY_CALLS.kept_out(left, why) as is_empty:
            if is_empty and not _is_program_inside():
                ray.shutdown()
                then()
                return True
        if not left:
            return False
        time.sleep(_LOOK_S)


def _is_program_inside() -> bool:
    """Whether a thread that is not Ray's own runs Ray's code.

    Ray must not be shut down under such a thread.
    """
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
