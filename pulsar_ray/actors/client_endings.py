"""Asks Ray whether it ended a worker on purpose, or with its node (ADR 0105)."""

from __future__ import annotations

import asyncio
import logging
import time

from pulsar_ray.transport.this_ray import draining_nodes, worker_ended

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0
"""Ray learns of a worker's end a moment after its connections are gone."""
LOOK_S = 0.05


async def ended_by_ray(place: str) -> bool:
    """Whether a worker was ended by `ray.kill` or with its node.

    That node may be gone or drained. False if Ray does not know within two seconds, or does not say it.
    """
    return await asyncio.get_running_loop().run_in_executor(None, _ended_by_ray, place)


def _ended_by_ray(place: str) -> bool:
    node_id, _, worker_id = place.partition("/")
    deadline = time.monotonic() + PATIENCE_S
    try:
        while (ended := worker_ended(node_id, worker_id)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return bool(ended) or node_id in draining_nodes()
    except Exception:
        # Internals of Ray, which differ from version to version: then it counts as it would without.
        logger.warning("Ray does not say how a client's worker ended", exc_info=True)
        return False
