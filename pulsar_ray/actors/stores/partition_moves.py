"""Begins moves of partitions between stores, and drains and balances stores (ADR 0141)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.passivation import Passivation
from pulsar_ray.actors.stores.move_carrier import ASK_DEADLINE_S, MoveCarrier, delete_rests
from pulsar_ray.actors.stores.resting_stores import RestingStores
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.move_plans import Retries, balanced
from pulsar_ray.broker.catalog.node_losses import Room, shared_out
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import Clock
from pulsar_ray.errors import (
    NotAllowedError,
    PulsarException,
    ServiceUnitNotReady,
)
from pulsar_ray.model.topic_name import TopicName, heartbeat
from pulsar_ray.moving.move import Move

logger = logging.getLogger(__name__)

MOVES_AT_ONCE = 4
MOST_BEGUN = 64
KEPT_MOVES = 200


class PartitionMoves:
    """Begins and counts moves for the controller, on its loop.

    The moves under way are known here alone: with a controller that dies each is broken off, or was owned by
    its target already. Its rests are deleted when a store is looked through, by the move's id.
    """

    def __init__(
        self,
        served: TopicActors,
        actors: BrokerActors,
        stores: Stores,
        passivation: Passivation,
        clock: Clock,
        follow_owners: Callable[[str, Iterable[int]], Awaitable[None]],
    ) -> None:
        self._follow_owners = follow_owners
        self._served = served
        self._actors = actors
        self._stores = stores
        self._passivation = passivation
        self._clock = clock
        self._catalog = served.topics.catalog
        self._moves: dict[int, Move] = {}
        self._ended: deque[Move] = deque(maxlen=KEPT_MOVES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._clearing: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MOVES_AT_ONCE)
        self._looked_through: set[ActorHandle] = set()
        self._retries = Retries()
        self._looking = asyncio.Lock()
        self._resting = RestingStores(stores, actors)

    # --- beginning --------------------------------------------------------------------------------

    def move(self, topic: str, store_id: str) -> list[str]:
        """Have the partitions of a topic, or a single one, move.

        Returns the ids of the moves; those that are there already have none. Raises TopicNotFound, and as
        `begin`.
        """
        name = TopicName.parse(topic)
        rows = self._movable(self._served.topics.resolve(name, create=False, stores=list))
        if not rows:
            raise NotAllowedError(f"nothing of {topic} is stored, so there is nothing to move")
        return [each for each in [self.begin(row, store_id) for row in rows] if each]

    def _movable(self, rows: Iterable[PartitionRow]) -> list[PartitionRow]:
        """Return those that lie in a store, and belong to their topics already."""
        counts = {row.topic: self._catalog.partition_count(row.topic) or 0 for row in rows}
        return [
            row
            for row in rows
            if row.store_id
            and row.number > 0
            and row.topic != heartbeat(row.store_id).full
            and TopicName.parse(row.name).is_persistent
            and (row.partition_index < 0 or row.partition_index < counts[row.topic])
        ]

    def begin(self, row: PartitionRow, target: str, *, is_by_itself: bool = False) -> str:
        """Have a partition move to a store, and return the move's id.

        It is "" for one that is there. Asked again while it moves there, it is the same move. Raises
        NotAllowedError for one that moves elsewhere, and for a store that is not there or is being emptied,
        WrongNode if its own is away.
        """
        under_way = self._moves.get(row.number)
        if under_way is not None:
            if under_way.target != target:
                raise NotAllowedError(
                    f"{row.name} is moving to store {under_way.target} already: wait for that to end"
                )
            return under_way.move_id
        if row.store_id == target:
            return ""
        if target not in self._stores.present:
            raise NotAllowedError(f"there is no store {target} now: `pulsar-ray nodes` lists all of them")
        if target not in self._stores.for_new_partitions():
            raise NotAllowedError(f"store {target} is to become empty, so nothing moves there")
        self._served.store_of(row)
        move = Move(
            secrets.token_hex(8),
            row.name,
            row.number,
            row.store_id,
            target,
            asked_ms=self._clock.now_ms(),
            is_by_itself=is_by_itself,
        )
        self._moves[row.number] = move
        task = asyncio.get_running_loop().create_task(self._carry_out(move))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return move.move_id

    def describe(self) -> list[dict[str, Any]]:
        """Return all moves that are asked for, and the last ones that have ended."""
        return [
            {"moveId": move.move_id, **move.describe(), "isOver": move.step is None}
            for move in [*self._moves.values(), *self._ended]
        ]

    # --- by themselves ----------------------------------------------------------------------------

    def rows_in(self, store_id: str) -> list[PartitionRow]:
        """Return what would have to leave a store before that is empty."""
        own = heartbeat(store_id).full
        rows = map(self._catalog.partition, self._catalog.names_in(store_id, -1))
        return [row for row in rows if row is not None and row.topic != own]

    async def drain(self, store_id: str) -> None:
        """Have a store become empty, and stay so until somebody takes that back.

        Raises NotAllowedError for one that is not there, ServiceUnitNotReady if it is the last one.
        """
        if store_id not in self._stores.present:
            raise NotAllowedError(f"there is no store {store_id} now: `pulsar-ray nodes` lists all of them")
        if not set(self._stores.for_new_partitions()) - {store_id}:
            raise ServiceUnitNotReady(
                f"store {store_id} is the last one that takes partitions: add a node first"
            )
        self._catalog.drain_store(store_id)
        await self._catalog.settled()
        event(logger, "store %s is to become empty", store_id)
        await self.look()

    async def undrain(self, store_id: str) -> None:
        """Let a store take partitions again; what moves away and has not begun stays."""
        self._catalog.drain_store(store_id, is_wanted=False)
        await self._catalog.settled()
        for move in list(self._moves.values()):
            if move.source == store_id and move.is_by_itself:
                move.give_up("its node is not drained any more")
        if store_id not in self._stores.known:
            await self._stores.find()  # it rests

    async def balance(self) -> list[str]:
        """Have partitions move until all stores have about as many; returns the moves' ids."""
        async with self._looking:
            open_to = self._stores.for_new_partitions()
            rooms = await self._rooms(open_to)
            partitions = {
                store_id: [row.number for row in self._movable(self.rows_in(store_id))]
                for store_id in self._stores.known
            }
            moves = balanced(partitions, rooms)
            rows = {number: self._catalog.numbered(number) for number in moves}
            return [
                self.begin(row, moves[number])
                for number, row in rows.items()
                if row is not None and number not in self._moves
            ]

    async def _rooms(self, store_ids: Iterable[str]) -> dict[str, Room]:
        """Return the rooms of stores, with what is on its way there."""
        handles = {each: self._stores.known[each]["handle"] for each in store_ids}
        coming = Counter(move.target for move in self._moves.values())
        leaving = Counter(move.source for move in self._moves.values())
        return {
            store_id: replace(room, partitions=room.partitions + coming[store_id] - leaving[store_id])
            for store_id, room in (await self._stores.rooms(handles)).items()
        }

    async def look(self) -> None:
        """Have partitions leave the stores that are drained, so many at once."""
        async with self._looking:
            self._stores.look_for_draining()
            drained = self._stores.drained()
            for move in self._moves.values():
                if move.target in drained:
                    move.give_up(f"store {move.target} is to become empty")
            for store_id in sorted(drained):
                await self._empty(store_id)
            if drained:
                await self._resting.look(self._cleared(), asyncio.get_running_loop().time())

    def _cleared(self) -> list[str]:
        """Return the stores that have nothing, not even the rest of a move."""
        moving = {each for move in self._moves.values() for each in (move.source, move.target)}
        return [
            store_id
            for store_id, store in self._stores.known.items()
            if store["handle"] in self._looked_through
            and not (self._clearing or store_id in moving or self.rows_in(store_id))
        ]

    async def _empty(self, store_id: str) -> None:
        rows = {row.number: row for row in self._movable(self.rows_in(store_id))}
        now = asyncio.get_running_loop().time()
        due = [each for each in self._retries.due(rows, now) if each not in self._moves]
        due = due[: max(0, MOST_BEGUN - len(self._moves))]
        try:
            rooms = await self._rooms(self._stores.for_new_partitions()) if due else {}
            shares = shared_out(list(map(str, due)), rooms)
            if due and not shares:
                raise ServiceUnitNotReady("no other node has room on its disk")
        except PulsarException as error:
            for number in due:
                self._retries.failed(number, now, error.text)
            return
        for target, numbers in shares.items():
            for number in map(int, numbers):
                try:
                    self.begin(rows[number], target, is_by_itself=True)
                except PulsarException as error:
                    self._retries.failed(number, now, error.text)

    @property
    def count(self) -> int:
        """How many moves are asked for or run."""
        return len(self._moves)

    def why_not_empty(self, store_id: str) -> str:
        """Say what a store has that is to become empty; "" of another."""
        described = self.describe_store(store_id)
        return str(described["reason"]) if described.get("state") == "draining" else ""

    def describe_store(self, store_id: str) -> dict[str, Any]:
        """Say how far a store is that is to become empty; nothing of another."""
        if store_id not in self._stores.drained():
            return {}
        rows = self.rows_in(store_id)
        if not rows:
            return {"state": "drained", "reason": "nothing lies there any more: its node may go"}
        problem = self._retries.reason(row.number for row in rows)
        left = f"{len(rows)} partitions have still to leave"
        return {"state": "draining", "reason": f"{left}: {problem}" if problem else left}

    # --- carrying out -----------------------------------------------------------------------------

    async def _carry_out(self, move: Move) -> None:
        try:
            async with self._slots:
                await MoveCarrier(
                    move, self._served, self._actors, self._stores, self._passivation, self._clearing
                ).run()
        except Exception:
            logger.exception("a move of %s failed", move.name)
            move.step, move.reason = None, move.reason or "it failed: see the controller's log"
        finally:
            self._moves.pop(move.number, None)
            self._ended.append(move)
            if move.is_moved:
                self._retries.forget(move.number)
            elif move.is_by_itself:
                self._retries.failed(move.number, asyncio.get_running_loop().time(), move.reason)
        hosts = [self._stores.known.get(each, {}).get("host", each) for each in (move.source, move.target)]
        if move.is_moved:
            event(logger, "has moved from %s to %s", *hosts, topic=move.name)
        else:
            said = "stays on %s, and did not move to %s: %s"
            event(logger, said, *hosts, move.reason, topic=move.name, level=logging.WARNING)

    # --- what is left -----------------------------------------------------------------------------

    async def look_through(self) -> None:
        """Delete what moves have left in stores that nobody has looked through yet."""
        stores = list(self._stores.known.items())
        self._looked_through &= {store["handle"] for _, store in stores}
        for store_id, store in stores:
            if store["handle"] not in self._looked_through:
                self._looked_through.add(store["handle"])
                try:
                    await self._follow_owners(store_id, self._catalog.numbers_in(store_id))
                    await self._look_through(store_id, store["handle"])
                except PulsarException as error:
                    logger.warning("store %s is not looked through: %s", store_id, error)
                    self._looked_through.discard(store["handle"])

    async def _look_through(self, store_id: str, handle: ActorHandle) -> None:
        for number, state, move_id in await handle.call(
            "call_part", "moved_files", "noted", within_s=ASK_DEADLINE_S
        ):
            row = self._catalog.numbered(number)
            is_here = row is not None and row.store_id == store_id
            under_way = {move.move_id for move in self._moves.values()}
            if move_id.removeprefix("gone-") in under_way or (state and is_here) or row is None:
                continue
            await delete_rests(handle, number, move_id)
            event(logger, "store %s had rests of a move of partition %d: deleted", store_id, number)
