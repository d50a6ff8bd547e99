"""The stores of the cluster as the controller knows them: found, waited for, and looked after."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray

from pulsar_ray.actors.local_ray import alive_nodes, is_running
from pulsar_ray.actors.options import create
from pulsar_ray.actors.store import StoreActor
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotConnected, PulsarException, Timeout
from pulsar_ray.transport.names import store_name
from pulsar_ray.transport.ray_errors import translated

logger = logging.getLogger(__name__)

START_DEADLINE_S = 50.0
PROBE_DEADLINE_S = 7.0
RETRY_S = 0.1


class Stores:
    """`known` maps a store's id to what it said of itself and its `handle`."""

    def __init__(self, data_dir: str, settings: Settings) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self.known: dict[str, dict[str, Any]] = {}

    async def find(self, *, required: bool = False) -> None:
        """A store on every live node; one that has no usable directory of its own is left out.

        Stores of nodes that are gone are forgotten: a node that comes back has another id.
        `required`: raises what is wrong with this node's, or Timeout while it does not answer.
        """
        here = ray.get_runtime_context().get_node_id()
        nodes = alive_nodes()
        self.known = {store_id: store for store_id, store in self.known.items() if store["node_id"] in nodes}
        for node_id in nodes:
            if any(store["node_id"] == node_id for store in self.known.values()):
                continue
            handle = create(StoreActor, store_name(node_id[:8]), node_id, self._data_dir, self._settings)
            try:
                described = await _described(handle, f"store on {node_id[:8]}")
            except PulsarException as error:
                if node_id == here and required:
                    if not error.retriable:
                        ray.kill(handle)
                    raise
                logger.warning("no store on node %s: %s", node_id[:8], error)
                continue
            self.known[described["store_id"]] = {**described, "handle": handle}

    async def probe(self) -> None:
        """Restart those that do not answer, and forget those that Ray will not restart."""
        stores = list(self.known.items())
        is_there = await asyncio.gather(*(_probe(store) for _, store in stores))
        for (store_id, _), is_known in zip(stores, is_there, strict=True):
            if not is_known:
                del self.known[store_id]


async def _described(handle: Any, what: str) -> dict[str, Any]:
    """What the store says, waiting while it starts or restarts. Raises its refusal, or Timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_DEADLINE_S
    while True:
        try:
            with translated(what):
                described: dict[str, Any] = await asyncio.wait_for(handle.describe.remote(), PROBE_DEADLINE_S)
                return described
        except asyncio.TimeoutError:
            if is_running(handle):
                logger.warning("%s does not answer: killing it", what)
                await asyncio.to_thread(ray.kill, handle, no_restart=False)
        except NotConnected:
            await asyncio.sleep(RETRY_S)
        if loop.time() > deadline:
            raise Timeout(f"{what} did not start within {START_DEADLINE_S:.0f} s")


async def _probe(store: dict[str, Any]) -> bool:
    """False if the store is dead for good."""
    try:
        await asyncio.wait_for(store["handle"].probe.remote(), PROBE_DEADLINE_S)
    except asyncio.TimeoutError:
        if is_running(store["handle"]):
            logger.warning("store %s does not answer: killing it", store["store_id"])
            await asyncio.to_thread(ray.kill, store["handle"], no_restart=False)
    except (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError):
        logger.warning("store %s is dead for good", store["store_id"])
        return False
    except ray.exceptions.RayError:
        logger.warning("store %s is not reachable", store["store_id"])
    return True
