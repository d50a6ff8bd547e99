"""Tell where Ray's object store was full, and try again for a while."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError, RayTaskError

from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.errors import ObjectStoreFull
from pulsar_ray.transport import this_ray

_log = logging.getLogger(__name__)
PATIENCE_S = 120.0
"""How long work pauses in all until it is tried no more."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0
_MIB = 1 << 20
_TASK = re.compile(r"ray::.* ip=([0-9a-fA-F.:]+)")

T = TypeVar("T")


def store_full(
    failed: BaseException, work: str, remedy: str, node_id: str | None = None
) -> ObjectStoreFull | None:
    """Return the error to raise for work that found a store full.

    None if it failed of something else. `work` says what it was ("reading topic t"), `remedy` how it needs
    less, `node_id` where it took place unless Ray says; None is this process's node.
    """
    address = None
    if isinstance(failed, RayTaskError):
        # Ray tells nothing of a task's node but in its traceback.
        found = _TASK.search(str(failed))
        address, failed = found and found[1], failed.cause
    if not isinstance(failed, OutOfDiskError | ObjectStoreFullError):
        return None
    spills = (
        ", and the disk that it spills to has no room (`df` shows it)"
        if isinstance(failed, OutOfDiskError)
        else ""
    )
    return ObjectStoreFull(
        f"{work}: Ray's object store on {_where(node_id, address)} is full of objects in use{spills}. "
        f"{remedy[0].upper()}{remedy[1:]}, let go of DataFrames and Datasets that are done, or give Ray a "
        "larger store (object_store_memory) or spill disk; `ray memory` lists the objects"
    )


def _where(node_id: str | None, address: str | None) -> str:
    try:
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        if node_id is None and address is None:  # it was this process that asked for room
            node_id = this_ray.node_id()
    except RayError:
        nodes = []
    for node in nodes:
        if node["Alive"] and (address == node["NodeManagerAddress"] or node_id == node["NodeID"]):
            size = node["Resources"].get("object_store_memory", 0.0) / _MIB
            return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']}), of {size:,.0f} MiB,"
    return f"node {address or node_id or 'unknown'}"


class NamingFullStores:
    """Raises ObjectStoreFull, in a `with`, for Ray's own errors that say so."""

    def __init__(self, work: str, remedy: str) -> None:
        self._work = work
        self._remedy = remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        full = store_full(error, self._work, self._remedy) if isinstance(error, RayError) else None
        if full is None:
            return
        try:
            raise full from None
        finally:
            # With their tracebacks they would keep this frame, and all above. A generator as the context is
            # called by a frame of Python's own, which keeps the error from Python 3.12 on.
            del error, full, traceback


def tried_while_full(step: Callable[[], T], pause: Callable[[float], bool]) -> T:
    """Make a step, again while it raises ObjectStoreFull, with PATIENCE_S of pauses.

    All that a failed step had in the store is given up by then: others may wait for that room.
    `pause(seconds)` waits, and says whether to give up.
    """
    waited_s, pauses_s = 0.0, growing_pauses_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    while True:
        try:
            return step()
        except ObjectStoreFull as error:
            full = error.again()
        # Behind the handler: the first error's traceback keeps the step's frames, which refer to its blocks.
        if waited_s >= PATIENCE_S:
            raise full
        pause_s = next(pauses_s)
        _log.warning("trying again in %g s: %s", pause_s, full.text)
        if pause(pause_s):
            raise full
        waited_s += pause_s


def paused(seconds: float) -> bool:
    """Wait, for `tried_while_full`, where nobody stops the work."""
    time.sleep(seconds)
    return False
