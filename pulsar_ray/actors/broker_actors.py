"""The partition and dispatcher actors of a broker: where they run, and how many."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle, ActorKind, ActorSystem
from pulsar_ray.actors.watching.silence import is_silent
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException, TooManyActiveActors

logger = logging.getLogger(__name__)

PROBE_DEADLINE_S = 2.0
SERVES_DEADLINE_S = 10.0
RESTART_POLL_S = 0.05
NAME_DEADLINE_S = 30.0
NAME_POLL_S = 0.02
END_DEADLINE_S = 8.0
"""Ray has ended a killed process by then; before 2.53 not one that is stopped."""


class BrokerActors:
    """Belongs to the controller. `handles` are by name; stores are described as `Stores` knows them."""

    def __init__(self, settings: Settings, system: ActorSystem) -> None:
        self._settings = settings
        self.system = system
        self.handles: dict[str, ActorHandle] = {}
        self._store_ids: dict[str, str] = {}
        self._killed_at_s: dict[str, float] = {}
        """When Ray was told to end and restart an actor that has not answered since."""

    def found(self, name: str, store_id: str) -> None:
        """One that ran before its controller was restarted."""
        handle = self.system.find(name)
        if handle is None:
            return
        self.handles[name] = handle
        self._store_ids[name] = store_id

    def create(self, kind: ActorKind, name: str, store: dict[str, Any], *args: Any) -> ActorHandle:
        """Start one beside a store. Raises TooManyActiveActors."""
        self.check_room(store, 1)
        handle = self.system.create(kind, name, store["node_id"], *args)
        self.handles[name] = handle
        self._store_ids[name] = store["store_id"]
        return handle

    def check_room(self, store: dict[str, Any], more: int) -> None:
        """Raise TooManyActiveActors if a store's node may not have so many more."""
        limit = self._settings.active_actor_limit(store["memory_bytes"])
        running = Counter(self._store_ids.values())[store["store_id"]]
        if running + more > limit:
            raise TooManyActiveActors(
                f"{running} partitions and subscriptions are active on node {store['node_id'][:8]}, and "
                f"{more} more would pass its max_active_actors of {limit}: close producers and consumers "
                "that nobody needs, so that what they used goes to sleep, raise the setting, or add a node",
                store["store_id"],
                running + more - limit,
            )

    def beside(self, store_id: str) -> list[str]:
        """The names of those that run beside a store."""
        return [name for name in self.handles if self._store_ids.get(name) == store_id]

    def store_of(self, name: str) -> str:
        """The store that an actor runs beside; "" of one that is not known."""
        return self._store_ids.get(name, "")

    def kill(self, name: str) -> None:
        """End one for good."""
        handle = self.forget(name)
        if handle is not None:
            handle.kill()

    async def name_is_free(self, name: str) -> None:
        """Wait until the name of one that was killed can be given again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NAME_DEADLINE_S
        while name in self.system.names() and loop.time() < deadline:
            await asyncio.sleep(NAME_POLL_S)

    async def restart(self, name: str) -> None:
        """End one as a crash would; returns once it has started again."""
        handle = self.handles.get(name)
        if handle is None:
            return
        former = await _pid(handle)
        await asyncio.to_thread(handle.crash)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SERVES_DEADLINE_S
        while await _pid(handle) in (None, former) and loop.time() < deadline:
            await asyncio.sleep(RESTART_POLL_S)

    def forget(self, name: str) -> ActorHandle | None:
        """Forget an actor that is not there any more, and return its handle."""
        self._store_ids.pop(name, None)
        self._killed_at_s.pop(name, None)
        return self.handles.pop(name, None)

    def forget_dead(self) -> list[str]:
        """Forget actors that Ray will not restart, and return their names.

        Somebody killed them, or their node is gone.
        """
        running = set(self.system.names())
        dead = [name for name in self.handles if name not in running]
        for name in dead:
            self.forget(name)
        return dead

    async def serves(self, name: str) -> bool:
        """Whether a dispatcher serves a subscription; not if it is dead or silent.

        Nor if the subscription is not there any more.
        """
        handle = self.handles.get(name)
        if handle is None:
            return False
        try:
            serves: bool = await handle.call("serves", within_s=SERVES_DEADLINE_S)
        except PulsarException:
            return False
        return serves and self.handles.get(name) is handle

    async def restart_if_silent(self, name: str) -> bool:
        """Look after an actor that does not answer its clients.

        True if it had to be killed (Ray restarts it). One that Ray cannot end is given up, and its successor
        kills it as the owner of its directory.
        """
        handle = self.handles.get(name) or self.system.find(name)
        if handle is None:
            return False
        if not handle.is_running():
            # A process that is still coming up, on a busy machine, must not be taken for a frozen one.
            return False
        if await is_silent(handle, PROBE_DEADLINE_S):
            now_s = asyncio.get_running_loop().time()
            may_restart = now_s - self._killed_at_s.setdefault(name, now_s) < END_DEADLINE_S
            logger.warning("%s does not answer: killing it%s", name, "" if may_restart else " for good")
            # Ray frees the name of one that is killed for good at once, and the next watch creates it anew.
            await asyncio.to_thread(handle.crash if may_restart else handle.kill)
            return True
        self._killed_at_s.pop(name, None)
        return False

    async def is_silent(self, name: str) -> bool:
        """Whether the process of an actor stands still: it runs, and does not answer."""
        handle = self.handles.get(name)
        return handle is not None and handle.is_running() and await is_silent(handle, PROBE_DEADLINE_S)


async def _pid(handle: ActorHandle) -> int | None:
    """The process of an actor; None if it does not answer."""
    try:
        pid: int = await handle.call("probe", within_s=PROBE_DEADLINE_S)
    except PulsarException:
        return None
    return pid
