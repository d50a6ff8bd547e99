"""Copies partitions that move, out of a store and into it (ADR 0141).

The target fetches: it asks the source's store for chunks, so that nothing passes through the controller.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.stores.data_directory import DataDirectory
from pulsar_ray.actors.stores.sleep_times import SleepTimes
from pulsar_ray.actors.stores.store_shipping import StoreShipping
from pulsar_ray.config import Settings
from pulsar_ray.errors import DiskSpaceLow, NotConnected, ServiceUnitNotReady
from pulsar_ray.moving.moved_files import CHUNK_BYTES, OVERLAP_BYTES, FinalFiles, MovedFiles

CHUNK_DEADLINE_S = 20.0
CHUNKS_AHEAD = 2
RESTS = 1.0
"""Gentle copying rests so many times as long as it has worked."""
MOST_TRIES = 3


class _Pull(NamedTuple):
    """A partition that a store copies, of a move, from another store."""

    source: ActorHandle
    number: int
    move_id: str
    is_gentle: bool


class PartitionCopies:
    """Carries out what a move does at its source, and at its target.

    `find_peer` returns the store of another node, None if it has none; it blocks. `files` are those of
    partitions that move.
    """

    def __init__(
        self,
        directory: DataDirectory,
        shipping: StoreShipping,
        sleeping: SleepTimes,
        settings: Settings,
        find_peer: Callable[[str], ActorHandle | None],
    ) -> None:
        self.files = MovedFiles(directory.ledgers)
        self._directory = directory
        self._shipping = shipping
        self._sleeping = sleeping
        self._settings = settings
        self._find_peer = find_peer

    # --- at the source ----------------------------------------------------------------------------

    async def fence(self, number: int, move_id: str) -> FinalFiles | None:
        """See MovedFiles.fence; a shipped partition has left the journal then, with all it had.

        Raises ServiceUnitNotReady while its journal does not run.
        """
        is_shipped = await asyncio.to_thread(self.files.is_shipped, number)
        journal = self._shipping.running() if is_shipped else None
        final = await asyncio.to_thread(self.files.fence, number, move_id)
        if final is None or journal is None:
            return final
        await asyncio.to_thread(journal.depart, number)
        return final._replace(is_shipped=True)

    async def ship(self, number: int) -> int:
        """Ship what there is by now, and return how many bytes have come meanwhile.

        See StoreLife.put_in_pieces. Raises ServiceUnitNotReady without a journal that runs.
        """
        journal = self._shipping.running()
        return await asyncio.to_thread(journal.run, lambda life: life.put_in_pieces(str(number)))

    async def clear(self, number: int, move_id: str) -> None:
        """See MovedFiles.clear; nothing wakes the partition here any more.

        A shipped one is dropped by its journal, if another store owns it.
        """
        is_gone = await asyncio.to_thread(self.files.clear, number, move_id)
        journal = self._shipping.journal
        if not is_gone and journal is not None and await asyncio.to_thread(self.files.is_shipped, number):
            is_gone = await asyncio.to_thread(journal.let_go, number)
        if is_gone:
            await self._sleeping.forget(number)

    # --- at the target ----------------------------------------------------------------------------

    async def begin(self, number: int, move_id: str, total_bytes: int, is_shipped: bool = False) -> None:
        """See MovedFiles.begin.

        Raises DiskSpaceLow where so much has no room, ServiceUnitNotReady for a shipped partition where no
        journal runs.
        """
        if is_shipped:
            self._shipping.running()
            return
        usage = await asyncio.to_thread(shutil.disk_usage, self._directory.path)
        mark = self._settings.low_water_mark_bytes(usage.total)
        if usage.free - total_bytes < mark:
            raise DiskSpaceLow(
                f"{self._directory.path} on {self._directory.node.host} has {usage.free:,} bytes free, and a "
                f"partition of {total_bytes:,} would leave less than the low-water mark of {mark:,}: free "
                "space there, or move it elsewhere"
            )
        await asyncio.to_thread(self.files.begin, number, move_id)

    async def pull(
        self,
        number: int,
        move_id: str,
        node_id: str,
        ends: dict[str, int],
        most_bytes: int,
        is_gentle: bool = False,
    ) -> int:
        """Copy files up to these ends from a node's store, and return what is left.

        About so many bytes are copied; gently for the sake of those that publish meanwhile. Files that are
        not listed, and what lies behind the ends, are deleted. It may be repeated.
        """
        source = await asyncio.to_thread(self._find_peer, node_id)
        if source is None:
            raise NotConnected(f"there is no store on node {node_id[:8]}")
        await asyncio.to_thread(self.files.cut, number, move_id, ends)
        left = {file: end - self.files.has(number, move_id, file) for file, end in ends.items()}
        rest = sum(left.values())
        pull = _Pull(source, number, move_id, is_gentle)
        for file, end in ends.items():
            if rest and most_bytes > 0 and (left[file] or not end):
                copied = await self._pull_file(pull, file, end, most_bytes)
                most_bytes -= copied
                rest -= copied
        if not rest:
            await asyncio.to_thread(self.files.sync, number, move_id)
        return rest

    async def _pull_file(self, pull: _Pull, file: str, end: int, most_bytes: int) -> int:
        had = self.files.has(pull.number, pull.move_id, file)
        start, stop = max(0, had - OVERLAP_BYTES), min(end, had + most_bytes)
        for _ in range(MOST_TRIES):
            if await self._pull_chunks(pull, file, start, stop):
                return self.files.has(pull.number, pull.move_id, file) - had
            start = 0
        raise NotConnected(f"{file} of partition {pull.number} has other bytes each time")

    async def _pull_chunks(self, pull: _Pull, file: str, start: int, stop: int) -> bool:
        """Copy a part of a file, the next chunks asked for while one is written.

        Gently one is durable before the next is asked for, with a rest between them: what the processors and
        the disk are slow with makes that longer. False if the file here has other bytes.
        """
        source, number, move_id, is_gentle = pull
        now, most_ahead = asyncio.get_running_loop().time, 1 if is_gentle else CHUNKS_AHEAD
        ahead: deque[tuple[int, int, float, asyncio.Future[Any]]] = deque()
        try:
            while start < stop or ahead:
                while start < stop and len(ahead) < most_ahead:
                    length = min(CHUNK_BYTES, stop - start)
                    chunk = number, file, start, length
                    call = source.call("call_part", "moved_files", "read", *chunk, within_s=CHUNK_DEADLINE_S)
                    ahead.append((start, length, now(), asyncio.ensure_future(call)))
                    start += length
                at, length, began, asked = ahead.popleft()
                data, total = await asked
                if not data:
                    break  # it is gone: the next listing tells
                put = partial(self.files.put, number, move_id, file, at, data, total, is_synced=is_gentle)
                if not await asyncio.to_thread(put):
                    return False
                if len(data) < length:
                    break  # it is shorter
                if is_gentle:
                    await asyncio.sleep(RESTS * (now() - began))
            return True
        finally:
            for *_, asked in ahead:
                asked.cancel()

    async def install(self, number: int, move_id: str, files: FinalFiles) -> None:
        """See MovedFiles.install; a shipped partition is owned here in the object store then.

        Raises ServiceUnitNotReady if another store owns it.
        """
        if not files.is_shipped:
            await asyncio.to_thread(self.files.install, number, move_id, files)
            return
        owner = await asyncio.to_thread(self._shipping.running().take, number)
        store = self._directory.store
        if store is None or owner != store.store_id:
            raise ServiceUnitNotReady(f"store {owner} owns partition {number} in the object store")
