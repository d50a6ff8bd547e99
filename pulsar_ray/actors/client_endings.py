"""Asks Ray whether it ended a worker on purpose, or with its node (ADR 0105)."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.lane.waiting import within
from pulsar_ray.transport.this_ray import draining_nodes, raylet_is_gone, worker_ended

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0
"""Ray learns of a worker's end a moment after its connections are gone."""
FIRST_LOOK_S = 0.05
LONGEST_LOOK_S = 0.4
RAYLET_ANSWER_S = 2.0


async def ended_by_ray(place: str) -> bool:
    """Whether a worker was ended by `ray.kill` or with its node.

    That node may be gone or drained. False if Ray does not know within two seconds, or does not answer, and
    the node's raylet takes connections.
    """
    node_id, worker_id = place.split("/")
    try:
        with contextlib.suppress(asyncio.TimeoutError):
            return await within(_end_of(node_id, worker_id), PATIENCE_S)
        # Ray takes a node whose heartbeats stay out for alive for ten seconds and more.
        asked = asyncio.get_running_loop().run_in_executor(None, raylet_is_gone, node_id)
        return await within(asked, RAYLET_ANSWER_S)
    except asyncio.TimeoutError:
        return False
    except Exception:
        # Internals of Ray, which differ from version to version: then it counts as it would without.
        logger.warning("Ray does not say how a client's worker ended", exc_info=True)
        return False


async def _end_of(node_id: str, worker_id: str) -> bool:
    loop, pauses_s = asyncio.get_running_loop(), growing_pauses_s(FIRST_LOOK_S, LONGEST_LOOK_S)
    # Many workers may end at once: none keeps one of the few threads for as long as it waits.
    while (ended := await loop.run_in_executor(None, _look, node_id, worker_id)) is None:
        await asyncio.sleep(next(pauses_s))
    return ended


def _look(node_id: str, worker_id: str) -> bool | None:
    ended = worker_ended(node_id, worker_id)
    return ended or node_id in draining_nodes() or ended
