"""Asks the stores for an overview of the cluster's topics (ADR 0060)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.figures.overview import MAX_TOPICS, SORTS, merged
from pulsar_ray.errors import InvalidConfiguration, PulsarException
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import parse_dispatcher_name, parse_tracker_name, topic_of_actor

STORE_DEADLINE_S = 2.0
FRESH_S = 0.5
"""An answer is given to everybody who asks the same so soon."""
_REMEMBERED = 16
STARTING = "starting"

Query = tuple[str, str, int, tuple[str, ...] | None]


class Overview:
    """Belongs to the controller; runs on its loop.

    One call to each store, however many topics there are and whoever watches. No partition and no dispatcher
    is asked.
    """

    def __init__(
        self,
        stores: Stores,
        actors: BrokerActors,
        catalog: Catalog,
        now_s: Callable[[], float],
        moves: Callable[[], int],
    ) -> None:
        self._moves = moves
        self._stores = stores
        self._actors = actors
        self._catalog = catalog
        self._now_s = now_s
        self._answers: dict[Query, tuple[float, asyncio.Task[dict[str, Any]]]] = {}

    async def describe(self, text: str, sort: str, limit: int, names: Sequence[str] | None) -> dict[str, Any]:
        """See Admin.overview. Raises InvalidConfiguration for a sorting that there is not."""
        if sort not in SORTS:
            raise InvalidConfiguration(f"sort is {sort!r}: use one of {', '.join(SORTS)}")
        if not 1 <= limit <= MAX_TOPICS:
            raise InvalidConfiguration(f"limit is {limit}: use 1 to {MAX_TOPICS}")
        query = (text, sort, limit, None if names is None else tuple(names))
        known = self._answers.get(query)
        if known is None or self._now_s() - known[0] > FRESH_S:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            known = (self._now_s(), asyncio.get_running_loop().create_task(self._ask(query)))
            self._answers[query] = known
        return await asyncio.shield(known[1])

    async def _ask(self, query: Query) -> dict[str, Any]:
        _, sort, limit, names = query
        stores = list(self._stores.known.items())
        answers = await self._answered(stores, query)
        if len(stores) > 1 and names is None and any(each.get("topicsNotShown") for each in answers):
            # A topic may be among the first on one node only: it is to have its sums of all of them.
            first = tuple({row["name"] for each in answers for row in each.get("topics", ())})
            hidden = sum(each.get("topicsNotShown", 0) for each in answers)
            answers = await self._answered(stores, ("", sort, MAX_TOPICS, first))
        else:
            hidden = 0
        overview = merged([each for each in answers if "topics" in each], sort, limit)
        overview["topicsNotShown"] += hidden
        self._mark_starting(overview["topics"])
        for row in overview["topics"]:
            row.update(self._catalog.schemas.in_short(row["name"]))
        return {
            **overview,
            "counts": self.counts(),
            "partitionsAway": self.partitions_away(),
            "partitionsMoving": self._moves(),
            "stores": [
                {"storeId": store_id, "host": store["host"], "path": store["path"], **_of_store(answer)}
                for (store_id, store), answer in zip(stores, answers, strict=True)
            ]
            + self._away_stores(),
        }

    async def _answered(self, stores: list[tuple[str, dict[str, Any]]], query: Query) -> list[dict[str, Any]]:
        return await asyncio.gather(*(_asked(store["handle"], query) for _, store in stores))

    def _mark_starting(self, rows: list[dict[str, Any]]) -> None:
        """Mark the topics of which partitions are starting, perhaps not for the first time."""
        running: dict[str, int] = {}
        for name in self._actors.handles:
            if parse_dispatcher_name(name) is None and parse_tracker_name(name) is None:
                topic = TopicName.parse(topic_of_actor(name)).partitioned_full
                running[topic] = running.get(topic, 0) + 1
        for row in rows:
            if running.get(row["name"], 0) > row["awake"]:
                row["state"] = STARTING

    def counts(self) -> dict[str, int]:
        """How many topics run and sleep."""
        running = {TopicName.parse(topic_of_actor(name)).partitioned_full for name in self._actors.handles}
        stored = sum(TopicName.parse(topic).is_persistent for topic in running)
        return {"running": len(running), "sleeping": max(self._catalog.count_topics() - stored, 0)}

    def partitions_away(self) -> int:
        """How many partitions lie in stores that no running node holds."""
        per_store = self._catalog.partitions_per_store()
        return sum(count for store, count in per_store.items() if store not in self._stores.present)

    def _away_stores(self) -> list[dict[str, Any]]:
        places = self._catalog.stores()
        away = []
        for store_id, partitions in self._catalog.partitions_per_store().items():
            if store_id and store_id not in self._stores.present:
                host, path = places.get(store_id, ("an unknown host", ""))
                error = f"away, with {partitions} partitions"
                away.append({"storeId": store_id, "host": host, "path": path, "error": error})
        return away


def _of_store(answer: dict[str, Any]) -> dict[str, Any]:
    fields = ("freeBytes", "totalBytes", "diskState", "remoteLagSeconds", "error")
    return {name: answer[name] for name in fields if name in answer}


async def _asked(handle: ActorHandle, query: Query) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = await handle.call("overview", *query, within_s=STORE_DEADLINE_S)
    except PulsarException as error:
        return {"error": f"does not answer ({type(error).__name__})"}
    return answer
