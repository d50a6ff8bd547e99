"""Makes the stores' actors, one on each node, and asks each which store it holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle, ActorKind, ActorSystem
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotConnected, Timeout
from pulsar_ray.transport.actor_names import store_name

logger = logging.getLogger(__name__)

START_DEADLINE_S = 50.0
DESCRIBE_DEADLINE_S = 7.0
MAKE_DEADLINE_S = 7.0
RETRY_S = 0.1


class StoreActors:
    """Holds the handles of StoreActors by their nodes, all with one path as data directory."""

    def __init__(self, data_dir: str, settings: Settings, system: ActorSystem) -> None:
        self.data_dir = data_dir
        self._settings = settings
        self._system = system
        self._handles: dict[str, ActorHandle] = {}

    async def describe(self, node_id: str, *, make: bool = False) -> dict[str, Any]:
        """Describe the store of a node, with its `handle`.

        With `make` an empty directory becomes one.

        Raises what is wrong with its directory, or Timeout.
        """
        handle = self._handle(node_id)
        described = await _described(handle, f"the store on node {node_id[:8]}")
        if described["path"] != self.data_dir:
            # Of a broker that was killed, and had another directory.
            logger.warning("ending a store of %s that was left behind", described["path"])
            await asyncio.to_thread(self._handles.pop(node_id).kill)
            raise NotConnected(f"the store on node {node_id[:8]} is replaced")
        if described["identity"] is None and make:
            described = await handle.call("describe", True, within_s=MAKE_DEADLINE_S)
        return {**described, "handle": handle}

    def _handle(self, node_id: str) -> ActorHandle:
        if node_id not in self._handles:
            self._handles[node_id] = self._system.create(
                ActorKind.STORE,
                store_name(node_id[:8]),
                node_id,
                self.data_dir,
                self._settings,
                self._system,
            )
        return self._handles[node_id]

    def forget(self, node_id: str) -> None:
        """Look a node's actor up again next time."""
        self._handles.pop(node_id, None)

    def keep(self, node_ids: Collection[str]) -> None:
        """Forget the actors of all other nodes, which have left."""
        for node_id in self._handles.keys() - set(node_ids):
            del self._handles[node_id]

    async def end(self, node_id: str) -> None:
        """End the actor of a node if there is one."""
        if (handle := self._handles.pop(node_id, None)) is not None:
            await asyncio.to_thread(handle.kill)

    def end_all(self) -> None:
        """End all of them, also those whose stores are refused."""
        for handle in self._handles.values():
            handle.kill()


async def _described(handle: ActorHandle, what: str) -> dict[str, Any]:
    """Describe a store, waiting while it starts or restarts.

    Raises its refusal, or Timeout.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_DEADLINE_S
    while True:
        try:
            described: dict[str, Any] = await handle.call("describe", within_s=DESCRIBE_DEADLINE_S)
            return described
        except Timeout:
            if handle.is_running():
                logger.warning("%s does not answer: killing it", what)
                await asyncio.to_thread(handle.crash)
        except NotConnected:
            await asyncio.sleep(RETRY_S)
        if loop.time() > deadline:
            raise Timeout(f"{what} did not start within {START_DEADLINE_S:.0f} s")
