"""Carries out one move of a partition between two stores."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.passivation import Passivation
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.errors import (
    BrokerPersistenceError,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    WrongNode,
)
from pulsar_ray.moving.move import Move, Step
from pulsar_ray.moving.moved_files import FinalFiles
from pulsar_ray.transport.actor_names import partition_name

logger = logging.getLogger(__name__)

SLICE_BYTES = 64 << 20
ASK_DEADLINE_S = 20.0
COPY_DEADLINE_S = 120.0
DISK_DEADLINE_S = 300.0
STOP_DEADLINE_S = 5.0
AGAIN_S = 0.5
SLOWED_BY = 3
"""A partition that takes too much takes so many times less than is copied."""
SLOWED_MS = 30_000
KEEP_SOURCE_S = 60.0
"""Consumers on the node may have queued messages that they read there."""


async def delete_rests(handle: ActorHandle, number: int, move_id: str) -> None:
    """Delete what a move has left, by its id: a late call touches nothing else."""
    for part, method in (("moved_files", "discard"), ("copies", "clear")):
        await handle.call("call_part", part, method, number, move_id, within_s=DISK_DEADLINE_S)


class MoveCarrier:
    """Carries the steps of one move out, as `Move` decides (ADR 0141).

    `clearing` has the tasks that outlive the move: each deletes files at its source once nobody reads them.
    """

    def __init__(
        self,
        move: Move,
        served: TopicActors,
        actors: BrokerActors,
        stores: Stores,
        passivation: Passivation,
        clearing: set[asyncio.Task[None]],
    ) -> None:
        self._move = move
        self._clearing = clearing
        self._served = served
        self._actors = actors
        self._stores = stores
        self._passivation = passivation
        self._catalog = served.topics.catalog
        self._held: asyncio.Future[Any] | None = None
        self._was_running = False
        self._final: FinalFiles | None = None
        self._ready_at: float | None = None
        """The loop's time at which the target's node has a process for the partition."""
        self._must_hurry = False
        """Whether the partition grows by more than half of what gentle copying copies."""

    async def run(self) -> None:
        """Carry the move out to its end."""
        move = self._move
        try:
            while (step := move.next()) is not None:
                try:
                    await self._do(step)
                except PulsarException as error:
                    logger.debug("%s of %s failed: %s", step, move.name, error)
                    move.failed(error.text)
                    if move.step is Step.OWN:
                        await asyncio.sleep(AGAIN_S)
        finally:
            self._release()

    async def _do(self, step: Step) -> None:
        move = self._move
        if step is Step.COPY:
            await self._copy()
        elif step is Step.OWN:
            is_there = not move.is_shipped or await self._is_targets()
            if is_there:
                is_there = self._catalog.move_partition(move.number, move.source, move.target)
                await self._catalog.settled()
            move.owned(is_there)
        else:
            await {
                Step.PREPARE: self._prepare,
                Step.STOP: self._stop,
                Step.FENCE: self._fence,
                Step.LAST: self._copy_last,
                Step.INSTALL: self._install,
                Step.CLEAR: self._clear,
                Step.DISCARD: self._discard,
                Step.RESUME: self._resume,
            }[step]()
            move.done()

    # --- before the catalog decides ---------------------------------------------------------------

    async def _prepare(self) -> None:
        ends = await self._listed()
        self._move.total_bytes = self._move.rest_bytes = sum(ends.values())
        for number, _, move_id in await self._at_target("moved_files", "noted"):
            # The catalog has it elsewhere, so nobody needs these.
            await delete_rests(self._store(self._move.target)["handle"], number, move_id)
        self._move.is_shipped = await self._at_source("moved_files", "is_shipped")
        begun = self._move.move_id, sum(ends.values()), self._move.is_shipped
        await self._at_target("copies", "begin", *begun)

    async def _copy(self) -> None:
        ends, loop = await self._listed(), asyncio.get_running_loop()
        began, to_copy = loop.time(), self._move.rest_bytes
        if self._move.is_shipped:
            rest: int = await self._at_source("copies", "ship", within_s=COPY_DEADLINE_S)
        else:
            await self._pull(ends)
        bytes_a_second = to_copy / max(0.001, loop.time() - began)
        is_waiting = await self._until_ready()
        now = await self._listed()
        if not self._move.is_shipped:
            rest = sum(max(0, end - ends.get(file, 0)) for file, end in now.items())
        elif is_waiting:
            rest = await self._at_source("copies", "ship", within_s=COPY_DEADLINE_S)
        self._move.copied(sum(now.values()), rest)
        if self._move.is_outrun:
            await self._slow_down(bytes_a_second / SLOWED_BY)

    async def _until_ready(self) -> bool:
        """Wait until a process is there at the target for a partition that runs.

        Publishers wait for less then. Returns whether that took time.
        """
        if partition_name(self._move.name) not in self._actors.handles:
            return False
        now = asyncio.get_running_loop().time()
        if self._ready_at is None:
            node_id = self._store(self._move.target)["node_id"]
            self._ready_at = now + await self._actors.system.make_ready(node_id)
        await asyncio.sleep(max(0.0, self._ready_at - now))
        return self._ready_at > now

    async def _slow_down(self, bytes_a_second: float) -> None:
        """Have the partition take less than is copied, as the copying is to end."""
        handle = self._actors.handles.get(partition_name(self._move.name))
        if handle is not None:
            limit = {"bytes_per_s": max(1, int(bytes_a_second)), "for_ms": SLOWED_MS}
            await handle.call("call", "slow_down", limit, within_s=ASK_DEADLINE_S)

    async def _stop(self) -> None:
        row = self._row()
        self._held = await self._passivation.hold(row.name)
        names = [name for name, (of, _, _) in self._served.dispatchers.items() if of == row.name]
        self._was_running = partition_name(row.name) in self._actors.handles
        # Dispatchers first: their last acknowledgments move holds at the partition.
        for group in (names, [partition_name(row.name)]):
            await asyncio.gather(*(self._shut_down(name) for name in group))
        self._served.end(row)
        for name in (*names, partition_name(row.name)):
            await self._actors.name_is_free(name)

    async def _shut_down(self, name: str) -> None:
        """Let an actor write what is pending; without that it is as after a crash."""
        handle = self._actors.handles.get(name)
        if handle is not None:
            try:
                await handle.call("shutdown", within_s=STOP_DEADLINE_S)
            except PulsarException as error:
                logger.warning("%s moves, and did not stop by itself: %s", name, error)

    async def _fence(self) -> None:
        call = self._at_source("copies", "fence", self._move.move_id, within_s=DISK_DEADLINE_S)
        final: FinalFiles | None = await call
        if final is None and self._row().has_ledger:
            raise WrongNode(f"{self._move.name} is not in its directory: look at its disk")
        self._final = final
        if final is not None and final.is_shipped != self._move.is_shipped:
            # Its policy has changed since the move began.
            self._move.is_shipped = True
            raise ServiceUnitNotReady("it began or ceased to be shipped meanwhile: move it again")

    async def _copy_last(self) -> None:
        if self._final is not None and not self._final.is_shipped:
            await self._pull(self._final.ends)

    async def _install(self) -> None:
        if self._final is None:
            return  # nothing was ever stored
        within_s = DISK_DEADLINE_S
        await self._at_target("copies", "install", self._move.move_id, self._final, within_s=within_s)
        if not await self._at_source("moved_files", "is_fenced_as", self._final.epoch):
            raise ServiceUnitNotReady("somebody opened it at the source meanwhile")

    async def _is_targets(self) -> bool:
        """Whether the target owns the partition in the object store.

        If the source does, it takes the partition back. Raises an error that passes while neither store says.
        """
        move, number = self._move, str(self._move.number)
        owners: dict[str, str] | None = None
        for store_id in (move.target, move.source):
            try:
                owners = await self._ask(store_id, "journal", "owners_of", [number], within_s=DISK_DEADLINE_S)
                break
            except PulsarException as error:
                logger.debug("nobody says who owns %s: %s", move.name, error)
        if owners is None:
            raise NotConnected("neither store says who owns it in the object store")
        owner = owners.get(number, "")
        if owner == move.source:
            # A late claim of the target meets this one: the bucket's catalog takes one of them.
            owner = await self._at_source("journal", "take_back", within_s=DISK_DEADLINE_S)
        return owner == move.target

    async def _pull(self, ends: dict[str, int]) -> None:
        listed = sum(ends.values())
        before, is_again, pulled_bytes = listed + 1, False, 0
        while True:
            is_gentle = self._is_gentle()
            left: int = await self._at_target(
                "copies",
                "pull",
                self._move.move_id,
                self._store(self._move.source)["node_id"],
                ends,
                SLICE_BYTES,
                is_gentle,
                within_s=COPY_DEADLINE_S,
            )
            self._move.rest_bytes = left
            if not left or self._move.is_given_up:
                return
            if is_gentle:
                pulled_bytes += SLICE_BYTES
                grown = sum((await self._listed()).values()) - listed
                self._must_hurry = grown * 2 > pulled_bytes
            if left >= before:
                if not self._move.is_held or is_again:
                    return  # what is gone, or shorter, the next listing tells
                is_again = True
            before = left

    def _is_gentle(self) -> bool:
        """Whether copying leaves something to those that publish to the partition meanwhile.

        It hurries while they wait, where it would be outrun or nearly so, and where the node goes soon.
        """
        move = self._move
        is_running = partition_name(move.name) in self._actors.handles
        is_going = self._stores.is_draining(self._store(move.source))
        return is_running and not (move.is_held or move.is_outrun or self._must_hurry or is_going)

    # --- behind that ------------------------------------------------------------------------------

    async def _clear(self) -> None:
        if not KEEP_SOURCE_S:
            await self._clear_now()
            return
        task = asyncio.get_running_loop().create_task(self._clear_later())
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    async def _clear_later(self) -> None:
        await asyncio.sleep(KEEP_SOURCE_S)
        try:
            await self._clear_now()
        except PulsarException as error:
            # It is found when the store is taken in again.
            logger.warning("%s has moved, and its former files stay yet: %s", self._move.name, error)

    async def _clear_now(self) -> None:
        await self._at_source("copies", "clear", self._move.move_id, within_s=DISK_DEADLINE_S)

    async def _discard(self) -> None:
        await self._at_target("moved_files", "discard", self._move.move_id, within_s=DISK_DEADLINE_S)

    async def _resume(self) -> None:
        row = self._catalog.numbered(self._move.number)
        try:
            if row is None and self._move.is_moved:
                # It was deleted while it moved, by somebody who knew it at its source.
                await self._store(self._move.target)["handle"].call(
                    "remove", self._move.number, within_s=ASK_DEADLINE_S
                )
            elif row is not None and self._was_running:
                self._served.partition(row)
            elif row is not None and self._final is not None and self._move.is_moved:
                await self._at_target("sleeping", "moved_in")
        finally:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None and not held.done():
            held.set_result(None)

    # --- asking -----------------------------------------------------------------------------------

    def _row(self) -> PartitionRow:
        row = self._catalog.numbered(self._move.number)
        if row is None or row.store_id != self._move.source:
            raise BrokerPersistenceError("it was deleted or moved by others meanwhile")
        return row

    async def _listed(self) -> dict[str, int]:
        listed: dict[str, int] = await self._at_source("moved_files", "listed", within_s=COPY_DEADLINE_S)
        return listed

    def _store(self, store_id: str) -> dict[str, Any]:
        store = self._stores.known.get(store_id)
        if store is None:
            raise NotConnected(f"store {store_id} is not there")
        return store

    async def _at_source(
        self, part: str, method: str, *arguments: Any, within_s: float = ASK_DEADLINE_S
    ) -> Any:
        call = part, method, self._move.number, *arguments
        return await self._ask(self._move.source, *call, within_s=within_s)

    async def _at_target(
        self, part: str, method: str, *arguments: Any, within_s: float = ASK_DEADLINE_S
    ) -> Any:
        call = part, method, self._move.number, *arguments
        return await self._ask(self._move.target, *call, within_s=within_s)

    async def _ask(self, store_id: str, *call: Any, within_s: float) -> Any:
        handle: ActorHandle = self._store(store_id)["handle"]
        return await handle.call("call_part", *call, within_s=within_s)
