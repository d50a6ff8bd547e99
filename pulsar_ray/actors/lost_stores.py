"""Stores that are lost for good, and what is begun anew in their place."""

from __future__ import annotations

import logging
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.change_log_partitions import ChangeLogPartitions
from pulsar_ray.actors.stores import Stores
from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.broker.catalog.catalog import Subscriptions
from pulsar_ray.broker.catalog.change_logs import ChangeLogs
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.errors import NotAllowedError, PulsarException
from pulsar_ray.model.topic_name import TopicName, heartbeat, is_change_log

logger = logging.getLogger(__name__)

ASK_DEADLINE_S = 5.0
ADOPT_DEADLINE_S = 600.0


class LostStores:
    """Belongs to the controller."""

    def __init__(
        self, served: TopicActors, stores: Stores, logs: ChangeLogs, partitions: ChangeLogPartitions
    ) -> None:
        self._served = served
        self._stores = stores
        self._logs = logs
        self._partitions = partitions
        self._catalog = served.topics.catalog

    def losses(self, store_id: str) -> dict[str, Any]:
        """Say what is lost with a store.

        That is its last place, and the names of its partitions. Raises NotAllowedError for one that is there,
        that holds the catalog, or that nobody knows.
        """
        membership = self._stores.membership
        assert membership is not None
        known = self._catalog.stores()
        if store_id not in known and store_id not in self._catalog.partitions_per_store():
            raise NotAllowedError(f"there is no store {store_id}: `pulsar-ray nodes` lists all of them")
        if store_id in self._stores.known or store_id == membership.catalog_store_id:
            raise NotAllowedError(
                f"store {store_id} is there, so nothing of it is lost: delete topics, or take its node away"
            )
        host, path = known.get(store_id, ("an unknown host", ""))
        own = heartbeat(store_id).full
        names = [name for name in self._catalog.names_in(store_id, -1) if name != own]
        return {"storeId": store_id, "host": host, "path": path, "partitions": names}

    async def forget(self, store_id: str, subscriptions: Subscriptions) -> list[str]:
        """Begin the partitions of a lost store anew, empty, in the stores that are there.

        Partitions that an object store has are restored there instead, with numbers and ids as they were.
        Others have numbers that never come again, so that nobody takes them for what was lost, and
        get `subscriptions`. Changes of policies that lay there alone are lost as well. Returns the names of
        those. Raises as `losses`, and ServiceUnitNotReady where no other store takes partitions.
        """
        names: list[str] = self.losses(store_id)["partitions"]
        moved = await self._take_over(store_id)
        names = [name for name in names if name not in moved]
        logs = [name for name in map(TopicName.parse, names) if is_change_log(name)]
        for namespace in sorted({name.namespace_name for name in logs}):
            await self._logs.abandon(namespace)
        await self._stores.reserve_numbers(len(names))
        stores = self._stores.for_new_partitions
        rows = self._served.topics.forget_store(store_id, stores, subscriptions)
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

    async def shipped(self, store_id: str) -> list[str]:
        """Return the names of a store's partitions that an object store has."""
        journals = await self._with_journals()
        if not journals:
            return []
        owned = set(await journals[0][1].call("owned_by", store_id, within_s=ADOPT_DEADLINE_S))
        rows = [self._catalog.partition(name) for name in self._catalog.names_in(store_id, -1)]
        return [row.name for row in rows if row is not None and str(row.number) in owned]

    async def remote(self) -> list[dict[str, Any]]:
        """Return the state of each store's journal, with `storeId` and `host`; none for one without."""
        found = []
        for store_id, store in list(self._stores.known.items()):
            try:
                status = await store["handle"].call("remote", within_s=ASK_DEADLINE_S)
            except PulsarException as error:
                status = {"url": "", "isReady": False, "problem": error.text}
            if status is not None:
                found.append({"storeId": store_id, "host": store["host"], **status})
        return found

    async def _with_journals(self) -> list[tuple[str, ActorHandle]]:
        """Return the stores that are there and ship."""
        states = await self.remote()
        ready = [state["storeId"] for state in states if state["isReady"] and not state["problem"]]
        return [(each, self._stores.known[each]["handle"]) for each in ready if each in self._stores.known]

    async def _take_over(self, store_id: str) -> set[str]:
        """End the store's journal, and let others have what it shipped; return the partitions' names."""
        journals = await self._with_journals()
        if not journals:
            return set()
        owned = await journals[0][1].call("seal", store_id, within_s=ADOPT_DEADLINE_S)
        moves: dict[int, str] = {}
        for turn, (target, handle) in enumerate(journals):
            share = owned[turn :: len(journals)]
            for partition in await handle.call("adopt", share, within_s=ADOPT_DEADLINE_S):
                moves[int(partition)] = target
        moved = self._catalog.move_partitions(moves)
        for row in moved:
            self._served.end(row)
            event(logger, "was taken over from store %s, as it was shipped", store_id, topic=row.name)
        return {row.name for row in moved}

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
