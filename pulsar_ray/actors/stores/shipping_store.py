"""The part of a store that ships what is stored.

It makes the store a new one once others have ended it (ADR 0137).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.stores.held_store import StoreNode
from pulsar_ray.actors.stores.moving_store import MovingStore
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.config import OFF, Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.journal.store_journal import StoreJournal

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 5.0
JOIN_POLL_S = 0.05
CONTROLLER_DEADLINE_S = 5.0
UNSEALED_LOOK_S = 60.0


class ShippingStore(MovingStore):
    """A MovingStore with a journal, if there is an object store."""

    def __init__(self, path: Path, node: StoreNode, settings: Settings) -> None:
        super().__init__(path, node, settings)
        self._journal_task: asyncio.Task[None] | None = None
        self._journal_problem = ""

    def _controller(self) -> ActorHandle | None:
        """Return the controller, None if none runs. Blocks."""
        raise NotImplementedError

    def _end_process(self) -> None:
        """End this process, which starts again as that of a new store."""
        raise NotImplementedError

    def _begin_journal(self) -> None:
        """Ship from now on, if there is an object store, which may come up later."""
        if self._settings.remote_url != OFF and self._store is not None and self._journal_task is None:
            self._journal_task = asyncio.get_running_loop().create_task(self._keep_journal())

    async def _keep_journal(self) -> None:
        assert self._store is not None
        url, store_id = self._settings.remote_url, self._store.store_id
        while self._journal is None:
            if not (cluster_id := self._store.identity.cluster_id):  # it is about to be taken in
                await asyncio.sleep(JOIN_POLL_S)
                continue
            try:
                least_free = self._settings.low_water_mark_bytes(shutil.disk_usage(self._path).total)
                self._journal = await asyncio.to_thread(
                    StoreJournal,
                    self._path,
                    store_id,
                    url,
                    cluster_id,
                    self._settings.offload_cache_bytes,
                    least_free,
                )
            except (PulsarException, OSError) as error:
                if str(error) != self._journal_problem:
                    self._journal_problem = str(error)
                    logger.error("nothing is shipped to %s: %s", url, error)
                await asyncio.sleep(LOOK_INTERVAL_S)
        self._journal_problem = ""
        event(logger, "ships what is stored to %s, in life %d", url, self._journal.status()["life"])
        await self._go_on_when_ended(self._journal)

    async def _go_on_when_ended(self, journal: StoreJournal) -> None:
        """Become a new store, in a new process, once others have taken this one over."""
        problem = ""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            if not journal.is_ended:
                continue
            try:
                if await self._became_new(journal):
                    self._end_process()
            except (PulsarException, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    logger.warning("%s does not become a new store yet: %s", self._path, problem)

    async def _became_new(self, journal: StoreJournal) -> bool:
        assert self._store is not None
        owners = await asyncio.to_thread(journal.owners_if_sealed)
        identity = self._store.identity
        if owners is None:
            # A copy, or one that lacks what was shipped: a person decides.
            await asyncio.sleep(UNSEALED_LOOK_S)
            return False
        controller = await asyncio.to_thread(self._controller)
        if controller is None:
            return False
        if identity.store_id == await controller.call("catalog_store", within_s=CONTROLLER_DEADLINE_S):
            return False  # it leaves soon
        kept = await controller.call("kept_by", identity.store_id, within_s=CONTROLLER_DEADLINE_S)
        return await asyncio.to_thread(self._put_aside, owners, kept)

    async def remote(self) -> dict[str, Any] | None:
        """See HeldStore.remote; until the journal runs, why it does not."""
        if self._journal is None and self._settings.remote_url != OFF:
            return {"url": self._settings.remote_url, "isReady": False, "problem": self._journal_problem}
        return await super().remote()
