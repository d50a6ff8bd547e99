"""Ships what a store holds to the object store, if there is one.

It makes the store a new one once others have ended it (ADR 0137).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.stores.data_directory import DataDirectory
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.config import OFF, Settings
from pulsar_ray.errors import PulsarException, ServiceUnitNotReady
from pulsar_ray.journal.store_journal import StoreJournal

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 5.0
JOIN_POLL_S = 0.05
CONTROLLER_DEADLINE_S = 5.0
UNSEALED_LOOK_S = 60.0


class StoreShipping:
    """Runs the journal of a store.

    `find_controller` returns the controller, None if none runs; it blocks. `end_process` ends this process,
    which starts again as that of a new store.
    """

    def __init__(
        self,
        directory: DataDirectory,
        settings: Settings,
        find_controller: Callable[[], ActorHandle | None],
        end_process: Callable[[], None],
    ) -> None:
        self.journal: StoreJournal | None = None
        """None while it does not run, and without an object store."""
        self._directory = directory
        self._settings = settings
        self._find_controller = find_controller
        self._end_process = end_process
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    def begin(self) -> None:
        """Ship from now on, if there is an object store, which may come up later."""
        is_wanted = self._settings.remote_url != OFF and self._directory.store is not None
        if is_wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_journal())

    def running(self) -> StoreJournal:
        """Return the journal. Raises ServiceUnitNotReady without one that runs."""
        if self.journal is None:
            path = self._directory.path
            raise ServiceUnitNotReady(f"the store in {path} has no journal in an object store yet")
        return self.journal

    async def status(self) -> dict[str, Any] | None:
        """Return the state of the journal, see StoreJournal.status; None without an object store.

        Until the journal runs it says why it does not.
        """
        if self.journal is not None:
            return self.journal.status()
        if self._settings.remote_url == OFF:
            return None
        return {"url": self._settings.remote_url, "isReady": False, "problem": self._problem}

    async def _keep_journal(self) -> None:
        path, store = self._directory.path, self._directory.store
        assert store is not None
        url, store_id = self._settings.remote_url, store.store_id
        while self.journal is None:
            if not (cluster_id := store.identity.cluster_id):  # it is about to be taken in
                await asyncio.sleep(JOIN_POLL_S)
                continue
            try:
                least_free = self._settings.low_water_mark_bytes(shutil.disk_usage(path).total)
                self.journal = await asyncio.to_thread(
                    StoreJournal,
                    path,
                    store_id,
                    url,
                    cluster_id,
                    self._settings.offload_cache_bytes,
                    least_free,
                )
            except Exception as error:
                is_expected = isinstance(error, PulsarException | OSError)
                problem = str(error) if is_expected else f"{type(error).__name__}: {error}"
                if problem != self._problem:
                    self._problem = problem
                    logger.error("nothing is shipped to %s: %s", url, problem, exc_info=not is_expected)
                await asyncio.sleep(LOOK_INTERVAL_S)
        self._problem = ""
        event(logger, "ships what is stored to %s, in life %d", url, self.journal.status()["life"])
        await self._go_on_when_ended(self.journal)

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
                    logger.warning("%s does not become a new store yet: %s", self._directory.path, problem)

    async def _became_new(self, journal: StoreJournal) -> bool:
        store = self._directory.store
        assert store is not None
        owners = await asyncio.to_thread(journal.owners_if_sealed)
        store_id = store.store_id
        if owners is None:
            # A copy, or one that lacks what was shipped: a person decides.
            await asyncio.sleep(UNSEALED_LOOK_S)
            return False
        controller = await asyncio.to_thread(self._find_controller)
        if controller is None:
            return False
        if store_id == await controller.call("catalog_store", within_s=CONTROLLER_DEADLINE_S):
            return False  # it leaves soon
        kept_by = "lost_stores", "kept_by", store_id
        kept = await controller.call("call_part", *kept_by, within_s=CONTROLLER_DEADLINE_S)
        return await asyncio.to_thread(self._directory.put_aside, owners, kept)
