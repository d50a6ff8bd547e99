"""Decides for a cluster whose catalog is open, and looks after its actors and stores."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.change_log_partitions import ChangeLogPartitions
from pulsar_ray.actors.passivation import Passivation
from pulsar_ray.actors.policy_delivery import PolicyDelivery
from pulsar_ray.actors.stores.lost_stores import LostStores
from pulsar_ray.actors.stores.partition_moves import PartitionMoves
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.actors.watching.health_check import gather_facts
from pulsar_ray.actors.watching.overview import Overview
from pulsar_ray.actors.watching.resource_usage import ResourceUsage
from pulsar_ray.broker.catalog.administration.administration import Administration
from pulsar_ray.broker.catalog.administration.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.membership import Membership
from pulsar_ray.broker.catalog.schemas.schema_registry import SchemaRegistry
from pulsar_ray.broker.catalog.topic_ending import TopicEnding
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.broker.figures.actor_report import ActorReport, Figures
from pulsar_ray.broker.health.health_facts import judge
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.metric_catalogue import PARTITION_MOVES, PARTITIONS_AWAY, TOPICS
from pulsar_ray.model.policies import POLICIES

logger = logging.getLogger(__name__)

CALL_DEADLINE_S = 30.0
STATS_DEADLINE_S = 3.0


class ControlPlane:
    """Holds all that decides about a cluster's topics, actors and stores, and ties it together.

    All of it runs on the loop on which it is made.
    """

    def __init__(
        self,
        membership: Membership,
        stores: Stores,
        actors: BrokerActors,
        settings: Settings,
        *,
        was_restarted: bool,
        end_deposed: Callable[[str], None],
    ) -> None:
        """`end_deposed` ends the process for a reason: others decide from now on."""
        self.loop = asyncio.get_running_loop()
        self.membership = membership
        self.catalog = membership.catalog
        self.stores = stores
        self.actors = actors
        self._settings = settings
        topics = self.topics = TopicRegistry(self.catalog, settings)
        self.policies = PolicyDelivery(topics, actors)
        topic_actors = self.topic_actors = TopicActors(
            topics, stores, actors, settings, self.policies, lambda: self.passivation
        )
        topic_actors.find_running()
        passivation = self.passivation = Passivation(
            topic_actors,
            actors,
            stores,
            SystemClock(),
            settings,
            was_restarted=was_restarted,
            remove_topic=lambda topic: self.ending.delete_topic(topic, force=False),
        )
        partitions = ChangeLogPartitions(topic_actors, stores, actors, passivation)
        logs = self._logs = ChangeLogs(self.catalog, partitions, SystemClock().now_ms)
        self.ending = TopicEnding(topic_actors, logs, passivation.parked_clients.consumers.at)
        leave = partial(end_deposed, "the store beside it is gone, and others ship")
        self.lost_stores = LostStores(topic_actors, stores, logs, partitions, settings, leave=leave)
        self.moves = PartitionMoves(
            topic_actors, actors, stores, passivation, SystemClock(), self.lost_stores.follow_owners
        )
        self.administration = Administration(topics, logs, self.ending, settings, self._policy_changed)
        self.schemas = SchemaRegistry(
            topics,
            logs,
            settings,
            SystemClock().now_ms,
            topic_actors.use_of,
            partial(self._policy_changed, policy="schema_validation_enforced"),
        )
        self._usage = ResourceUsage(stores, actors)
        self.overview = Overview(stores, actors, self.catalog, self.loop.time, lambda: self.moves.count)
        self._catching_up = self._begin_catching_up()

    def _begin_catching_up(self) -> asyncio.Task[None]:
        async def catch_up() -> None:
            try:
                await self._logs.catch_up()
            except Exception:
                logger.exception("reading change logs failed")

        return self.loop.create_task(catch_up())

    async def caught_up(self, within_s: float) -> None:
        """Wait a while for what change logs say and this catalog does not know.

        With many logs, or one whose partition does not answer, the rest follows; nothing is deleted until
        then.
        """
        await asyncio.wait((self._catching_up,), timeout=within_s)

    async def _policy_changed(self, subject: str, policy: str) -> None:
        """Let actors heed a policy of a namespace or topic, those that sleep included."""
        await self.policies.changed(subject)
        if policy in POLICIES and POLICIES[policy].wakes:
            await self.passivation.look_again(self.topics.rows_below(subject))

    async def look(self) -> None:
        """Look once after stores, actors, moves, sleepers and policies."""
        await each_by_itself(
            self._look_after_stores,
            self.moves.look_through,
            self.moves.look,
            self._look_after_actors,
            self.lost_stores.give_inheritances,
            self.passivation.wake_due,
            self._look_after_logs,
            self.policies.repeat,
            self._usage.publish,
        )

    async def _look_after_stores(self) -> None:
        # Together: where none can be looked for none is lost either.
        await self.stores.find()
        await self.stores.probe()
        self.lost_stores.look(time.monotonic())

    async def _look_after_actors(self) -> None:
        self.topic_actors.replace_dead()

    async def _look_after_logs(self) -> None:
        if self._logs.is_behind and self._catching_up.done():
            self._catching_up = self._begin_catching_up()

    async def nodes(self) -> list[dict[str, Any]]:
        """Describe every node that has, had or could have a store, as `Stores.nodes`."""
        describe = self.lost_stores.describe
        nodes = [
            {**node, "reason": "; ".join(filter(None, (node["reason"], describe(node["storeId"]))))}
            for node in await self.stores.nodes()
        ]
        return [
            {**node, **(self.moves.describe_store(node["storeId"]) if not node["reason"] else {})}
            for node in nodes
        ]

    async def report(self) -> ActorReport:
        """Tell the metrics of the node of the cluster's topics and partitions."""
        gauges = {
            **{f"{TOPICS.name}:{state}": float(count) for state, count in self.overview.counts().items()},
            PARTITIONS_AWAY.name: float(self.overview.partitions_away()),
            PARTITION_MOVES.name: float(self.moves.count),
        }
        return ActorReport(kind="controller", figures=Figures(gauges=gauges))

    async def stats(self) -> dict[str, Any]:
        """Describe every running actor by name, and the stores, those away included.

        An actor that does not answer soon has an `error` instead: all are asked at the same time.
        """
        stores = dict(self.stores.known)
        handles = dict(self.actors.handles)
        asked = [*(store["handle"] for store in stores.values()), *handles.values()]
        answers = await asyncio.gather(*map(_stats_or_error, asked))
        of_stores = [
            {"storeId": store_id, "host": store["host"], "path": store["path"], **answer}
            for (store_id, store), answer in zip(stores.items(), answers, strict=False)
        ]
        present = self.stores.present
        for store_id, partitions in self.catalog.partitions_per_store().items():
            if store_id and store_id not in present:
                host, path = self.catalog.stores().get(store_id, ("an unknown host", ""))
                away = f"away, last seen on {host}, with {partitions} partitions"
                of_stores.append(
                    {"storeId": store_id, "host": host, "path": path, "away": True, "error": away}
                )
        hosts = {store_id: store["host"] for store_id, store in stores.items()}
        of_actors = {
            name: {"host": hosts.get(self.actors.store_of(name), ""), **answer}
            for name, answer in zip(handles, answers[len(stores) :], strict=True)
        }
        return {"stores": of_stores, **of_actors}

    async def health(self) -> dict[str, Any]:
        """Describe what does not work, as a HealthReport; wakes nobody, and answers within two seconds."""
        unread = self.catalog.change_logs.unknown if self._catching_up.done() else ()
        facts = await gather_facts(
            self.stores,
            self.actors,
            self._settings,
            sorted(unread),
            self.lost_stores.describe,
            self.moves.why_not_empty,
        )
        return judge(facts).described()

    async def close(self) -> None:
        """Let every actor write what is pending, then end them, and close the catalog."""
        handles = list(self.actors.handles.items())
        dispatchers = self.topic_actors.dispatchers
        # Dispatchers first: their last acknowledgments move holds at the partitions.
        for is_dispatcher in (True, False):
            await asyncio.gather(
                *(_stopped(name, h) for name, h in handles if (name in dispatchers) == is_dispatcher)
            )
        for name, _ in handles:
            self.actors.kill(name)
        with contextlib.suppress(PulsarException):
            await self.catalog.settled()
        await asyncio.to_thread(self.catalog.close)


async def each_by_itself(*steps: Callable[[], Awaitable[None]]) -> None:
    """Carry out each step, whatever becomes of those before it."""
    for step in steps:
        try:
            await step()
        except Exception:
            logger.exception("the controller's %s failed, and is tried again", step.__qualname__)


async def _stats_or_error(handle: ActorHandle) -> dict[str, Any]:
    try:
        stats: dict[str, Any] = await handle.call("stats", within_s=STATS_DEADLINE_S)
    except PulsarException as error:
        return {"error": f"does not answer ({type(error).__name__})"}
    return stats


async def _stopped(name: str, handle: ActorHandle) -> None:
    """Let an actor write what is pending."""
    try:
        await handle.call("shutdown", within_s=CALL_DEADLINE_S)
    except PulsarException as error:
        logger.warning("%s did not stop by itself: %s", name, error)
