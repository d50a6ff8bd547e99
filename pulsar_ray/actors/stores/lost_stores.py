"""Takes over what lost stores had shipped, and begins the rest anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.change_log_partitions import ChangeLogPartitions
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.broker.catalog.administration.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.catalog import PartitionRow, Subscriptions
from pulsar_ray.broker.catalog.node_losses import NodeLosses, shared_out
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.config import OFF, Settings
from pulsar_ray.errors import JournalDamaged, NotAllowedError, PulsarException, ServiceUnitNotReady
from pulsar_ray.model.topic_name import TopicName, heartbeat, is_change_log

logger = logging.getLogger(__name__)

ASK_DEADLINE_S = 5.0
ADOPT_DEADLINE_S = 600.0


class LostStores:
    """Belongs to the controller, which `leave` ends for another one to begin elsewhere."""

    def __init__(
        self,
        served: TopicActors,
        stores: Stores,
        logs: ChangeLogs,
        partitions: ChangeLogPartitions,
        settings: Settings,
        leave: Callable[[], None],
    ) -> None:
        self._served = served
        self._stores = stores
        self._logs = logs
        self._partitions = partitions
        self._catalog = served.topics.catalog
        self._settings = settings
        self._leave = leave
        self._losses = NodeLosses(settings.node_loss_seconds if settings.remote_url != OFF else 0)
        self._taking: asyncio.Task[None] | None = None

    def losses(self, store_id: str) -> dict[str, Any]:
        """Say what is lost with a store.

        That is its last place, and the names of its partitions. Raises NotAllowedError for one that is there,
        that holds the catalog, or that nobody knows.
        """
        membership = self._stores.membership
        known = self._catalog.stores()
        if store_id not in known and store_id not in self._catalog.partitions_per_store():
            raise NotAllowedError(f"there is no store {store_id}: `pulsar-ray nodes` lists all of them")
        if store_id in self._stores.present or store_id == membership.catalog_store_id:
            raise NotAllowedError(
                f"store {store_id} is there, so nothing of it is lost: delete topics, or take its node away"
            )
        host, path = known.get(store_id, ("an unknown host", ""))
        names = self._names_in(store_id)
        return {"storeId": store_id, "host": host, "path": path, "partitions": names}

    def _names_in(self, store_id: str) -> list[str]:
        """Return the names of a store's partitions, without its heartbeat's."""
        own = heartbeat(store_id).full
        return [name for name in self._catalog.names_in(store_id, -1) if name != own]

    def _rows_in(self, store_id: str) -> list[PartitionRow]:
        rows = map(self._catalog.partition, self._names_in(store_id))
        return [row for row in rows if row is not None]

    async def forget(self, store_id: str, subscriptions: Subscriptions) -> list[str]:
        """Begin the partitions of a lost store anew, empty, in the stores that are there.

        Partitions that an object store has are restored there instead, with numbers and ids as they were, but
        for those whose objects are missing or damaged there.
        Others have numbers that never come again, so that nobody takes them for what was lost, and
        get `subscriptions`. Changes of policies that lay there alone are lost as well. Returns the names of
        those. Raises as `losses`, and ServiceUnitNotReady where no other store takes partitions.
        """
        self.losses(store_id)
        await self._take_over(store_id, dict(await self._with_journals()), accepts_loss=True)
        names = self._names_in(store_id)
        logs = [name for name in map(TopicName.parse, names) if is_change_log(name)]
        for namespace in sorted({name.namespace_name for name in logs}):
            await self._logs.abandon(namespace)
        await self._stores.reserve_numbers(len(names))
        stores = self._stores.for_new_partitions
        rows = self._served.topics.forget_store(store_id, stores, subscriptions)
        await self._catalog.settled()
        await self._served.remove(rows)
        for row in rows:
            event(
                logger,
                "was lost with store %s: begun anew, empty",
                store_id,
                topic=row.name,
                level=logging.WARNING,
            )
        await self.give_inheritances()
        return names

    async def lost_with(self, store_id: str) -> dict[str, Any]:
        """Return `losses`, and with them what an object store has as `shipped`."""
        return {**self.losses(store_id), "shipped": await self.shipped(store_id)}

    async def shipped(self, store_id: str) -> list[str]:
        """Return the names of a store's partitions that an object store has."""
        journals = await self._with_journals()
        if not journals:
            return []
        owned = set(
            await journals[0][1].call("call_part", "journal", "owned_by", store_id, within_s=ADOPT_DEADLINE_S)
        )
        rows = [self._catalog.partition(name) for name in self._catalog.names_in(store_id, -1)]
        return [row.name for row in rows if row is not None and str(row.number) in owned]

    async def remote(self) -> list[dict[str, Any]]:
        """Return the state of each store's journal, with `storeId` and `host`; none for one without."""
        found = []
        for store_id, store in list(self._stores.known.items()):
            try:
                status = await store["handle"].call(
                    "call_part", "shipping", "status", within_s=ASK_DEADLINE_S
                )
            except PulsarException as error:
                status = {"url": "", "isReady": False, "problem": error.text}
            if status is not None:
                found.append({"storeId": store_id, "host": store["host"], **status})
        return found

    async def follow_owner(self, partition: str) -> None:
        """Learn from the object store which store has a partition by now. Raises TopicNotFound."""
        row = self._served.topics.row_of(partition)
        await self.follow_owners(row.store_id, [row.number])

    async def follow_owners(self, store_id: str, numbers: Iterable[int]) -> None:
        """Move the rows of a store's partitions that another one owns in the object store.

        A controller that died in the middle of a move has begun that, or the store is taken over just now.
        """
        for _, handle in await self._with_journals():
            owners = await handle.call(
                "call_part", "journal", "owners_of", list(map(str, numbers)), within_s=ADOPT_DEADLINE_S
            )
            known = {number: owner for number, owner in owners.items() if owner in self._stores.known}
            self._moved(store_id, known)
            await self._catalog.settled()
            return

    async def _with_journals(self) -> list[tuple[str, ActorHandle]]:
        """Return the stores that are there and ship."""
        states = await self.remote()
        ready = [state["storeId"] for state in states if state["isReady"] and not state["problem"]]
        return [(each, self._stores.known[each]["handle"]) for each in ready if each in self._stores.known]

    async def _take_over(
        self, store_id: str, handles: dict[str, ActorHandle], *, accepts_loss: bool = False
    ) -> set[str]:
        """End the store's journal, and let others have what it shipped; return the partitions' names.

        Nothing is ended if it shipped nothing, or if an object is missing in the middle. `handles` are the
        stores that ship. It may be repeated. Raises why some of it is not taken over; with `accepts_loss` a
        partition whose objects are missing or damaged is left out instead.
        """
        handles.pop(store_id, None)
        if not handles:
            return set()
        one = next(iter(handles.values()))
        numbers = {str(row.number): row for row in self._rows_in(store_id)}
        owners = await one.call("call_part", "journal", "owners_of", list(numbers), within_s=ADOPT_DEADLINE_S)
        # Of an attempt that was broken off, some may be another's already.
        moved = self._moved(store_id, owners)
        shipped = [number for number in numbers if owners.get(number) == store_id]
        if not shipped:
            return moved
        shares = shared_out(shipped, await self._stores.rooms(handles))
        if not shares:
            raise ServiceUnitNotReady("no other store that ships has room on its disk")
        await one.call("call_part", "journal", "seal", store_id, within_s=ADOPT_DEADLINE_S)
        for number in shipped:
            self._served.end(numbers[number])
        results = await asyncio.gather(
            *(self._adopted(store_id, handles[target], share) for target, share in shares.items()),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, JournalDamaged) and accepts_loss:
                said = "store %s: what cannot be restored is left out: %s"
                event(logger, said, store_id, result.text, level=logging.WARNING)
            elif isinstance(result, BaseException):
                raise result
            else:
                moved |= result
        return moved

    async def _adopted(self, store_id: str, handle: ActorHandle, share: list[str]) -> set[str]:
        """Let one store adopt partitions of a sealed one, and move them in the catalog."""
        try:
            await handle.call("call_part", "journal", "adopt", share, within_s=ADOPT_DEADLINE_S)
        finally:
            # Those that were adopted are served, whatever is wrong with another one.
            owners = await handle.call("call_part", "journal", "owners_of", share, within_s=ADOPT_DEADLINE_S)
            moved = self._moved(store_id, owners)
        return moved

    def _moved(self, store_id: str, owners: Mapping[str, str]) -> set[str]:
        """Note in the catalog whose partitions of a store are by now; return their names."""
        moves = {int(number): owner for number, owner in owners.items() if owner != store_id}
        rows: list[PartitionRow] = self._catalog.move_partitions(moves) if moves else []
        for row in rows:
            # On a node that is cut off it may run yet, and gives no receipt any more.
            self._served.end(row)
            target = moves[row.number]
            event(
                logger,
                "was taken over from store %s by %s, as it was shipped",
                store_id,
                target,
                topic=row.name,
            )
        return {row.name for row in rows}

    # --- without anybody's word -------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Take over stores that have been away for long, one at a time."""
        membership = self._stores.membership
        for store_id in list(self._stores.sealed):
            # Nobody may work in its directory when that becomes a new store.
            self._served.end_beside(store_id)
            self._stores.sealed.discard(store_id)
        due = self._losses.look(now, self._stores.absent())
        if not due or not (self._taking is None or self._taking.done()):
            return
        own = membership.catalog_store_id
        self._losses.begun(own if own in due else due[0])
        taking = self._leave_to_others(own) if own in due else self._take_over_by_itself(due[0])
        self._taking = asyncio.get_running_loop().create_task(taking)

    async def _leave_to_others(self, own: str) -> None:
        """End the controller if the disk with its catalog is gone, and another store ships.

        One that begins there takes the store over.
        """
        if any(store_id != own for store_id, _ in await self._with_journals()):
            self._leave()
        else:
            self._losses.failed(own, "the catalog is there, and no other store ships to the object store")

    def kept_by(self, store_id: str) -> list[int]:
        """Return the numbers of a store's partitions, without its heartbeat's."""
        return [row.number for row in self._rows_in(store_id)]

    def describe(self, store_id: str) -> str:
        """Say what is done about a store that is away, as `NodeLosses.describe`."""
        return self._losses.describe(store_id)

    async def _take_over_by_itself(self, store_id: str) -> None:
        try:
            left = await self._taken_over(store_id)
        except Exception as error:
            reason = str(error) or type(error).__name__
            event(logger, "store %s is not taken over: %s", store_id, reason, level=logging.WARNING)
            if not isinstance(error, PulsarException):
                logger.exception("taking store %s over failed", store_id)
            self._losses.failed(store_id, reason)
        else:
            self._losses.done(store_id, left)

    async def _taken_over(self, store_id: str) -> int:
        """Take a store over, and return how many of its partitions were never shipped.

        Those are not begun anew: their messages may come back with the disk.
        """
        handles = dict(await self._with_journals())
        if not handles.keys() - {store_id}:
            raise ServiceUnitNotReady("no other store ships to the object store")
        event(
            logger,
            "store %s has been away for %d s: others take over what it shipped",
            store_id,
            self._settings.node_loss_seconds,
            level=logging.WARNING,
        )
        self._stores.give_up(store_id, "it does not answer, and is taken over")
        moved = await self._take_over(store_id, handles)
        for row in self._served.topics.move_unopened(store_id, self._stores.for_new_partitions):
            self._served.end(row)
        left = self._names_in(store_id)
        event(logger, "store %s is taken over: %d partitions, %d left", store_id, len(moved), len(left))
        if not left:
            rows = self._catalog.forget_store(store_id, [], {})
            await self._catalog.settled()
            await self._served.remove(rows)
        return len(left)

    async def give_inheritances(self) -> None:
        """Give partitions that were begun anew their subscriptions; what fails is tried again later."""
        for name in self._catalog.heirs():
            try:
                await self.give_inheritance(name)
            except PulsarException as error:
                logger.warning("%s has not got its subscriptions yet: %s", name, error)

    async def give_inheritance(self, name: str) -> None:
        """Give a partition that was begun anew its subscriptions, which begin with its first message.

        Raises why that cannot be now, an error that may pass.
        """
        waiting = self._catalog.inheritance_of(name)
        for subscription, properties in waiting.items():
            arguments = {
                "name": subscription,
                "durable": True,
                "initial": "earliest",
                "properties": properties,
                "create": True,
            }
            await self._partitions.ask(name, "register_subscription", arguments)
        if waiting:
            self._catalog.settle_inheritance(name)
