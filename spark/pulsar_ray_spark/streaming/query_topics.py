"""Keep what a query has at the broker: topics, subscription and plans."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

from pulsar_ray.admin.admin import Admin
from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.client.client import Client
from pulsar_ray.data.planning.broker_planner import batch_index_of
from pulsar_ray.data.planning.plan import (
    AtMessages,
    Bound,
    RangePlan,
    RangePlanner,
    ReadRange,
    check_nothing_lost,
)
from pulsar_ray.errors import NotAllowedError, PulsarException, SubscriptionNotFound, TopicNotFound
from pulsar_ray.model.message_id import MessageId, Position
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray_spark.errors import QueryInUse
from pulsar_ray_spark.rounds.plan_log import NAMESPACE, PlanLog, check_name, log_topic
from pulsar_ray_spark.rounds.topic_source import TopicSource
from pulsar_ray_spark.streaming.batch_limits import Measured
from pulsar_ray_spark.streaming.planned_batch import BEGINNING, Place, decode_batch

_CALLS_AT_ONCE = 8


class QueryTopics:
    """Topics whose messages a durable subscription keeps until a query has committed them."""

    def __init__(self, admin: Admin, source: TopicSource, planner: RangePlanner, *, may_lose: bool) -> None:
        self._calls = TopicCalls(admin)
        self._source = source
        self._planner = planner
        self._may_lose = may_lose
        self._woken: set[str] = set()

    def places(self, start: Bound) -> dict[str, Place]:
        """The places that a bound stands for now, of each partition; held from now on."""
        return {
            name: Place(position, batch_index_of(start, TopicName.parse(name).partition_index, position))
            for name, position in self._source.first_positions(start).items()
        }

    def ends(self, known: Iterable[str]) -> dict[str, Place]:
        """The place behind the last message of each partition; see `TopicSource.ends`."""
        return {name: Place(end) for name, end in self._source.ends(known).items() if end.ledger_id >= 0}

    def measure(
        self, partition: str, first: Place, end: Place, messages: int, stored_bytes: int, takes_one: bool
    ) -> Measured:
        """Where so many messages end; see `measure_range` of a partition.

        From then on the partition keeps its messages for the query. Raises DataLost if its topic was
        deleted, unless messages may be lost: it has none then.
        """
        try:
            route = self._source.held(partition)
        except TopicNotFound:
            if not self._may_lose:
                raise self._source.gone(partition) from None
            return Measured(end, 0, 0)
        answer = self._calls.ask_partition(
            route,
            "measure_range",
            first=[*first.position],
            batch_index=first.batch_index,
            end=[*end.position],
            messages=messages,
            stored_bytes=stored_bytes,
            takes_one=takes_one,
        )
        place = Place(Position(*answer["end"]), answer["batch_index"])
        return Measured(place, answer["messages"], answer["stored_bytes"])

    def wake_dispatchers(self, partitions: Iterable[str]) -> None:
        """Have the dispatchers started that will acknowledge, once each, without waiting for them.

        A new one takes most of a second, which a batch takes too.
        """
        sleeping = [name for name in partitions if name not in self._woken]
        self._woken.update(sleeping)
        if sleeping:
            threading.Thread(
                target=self._wake, args=(sleeping,), name="wake dispatchers", daemon=True
            ).start()

    def _wake(self, partitions: Sequence[str]) -> None:
        # Whatever fails here is told by the acknowledgment.
        with suppress(PulsarException), ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            list(pool.map(self._source.wake_dispatcher, partitions))

    def acknowledge(self, places: Mapping[str, Place]) -> None:
        """Give up all messages before these places, durably, of the topics that are still there."""

        def give_up(item: tuple[str, Place]) -> None:
            name, place = item
            self._source.acknowledge({name: place.position})

        with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            list(pool.map(give_up, places.items()))

    @contextmanager
    def leased(self, partition: str, first: Place, end: Place) -> Iterator[Sequence[ReadRange]]:
        """The files that hold a range, kept until the context is left. Raises DataLost."""
        index = TopicName.parse(partition).partition_index
        start: Bound = "earliest" if first == BEGINNING else _at(index, first)
        with ExitStack() as lease:
            try:
                self._source.held(partition)
                plan = lease.enter_context(self._planner.plan([partition], start, _at(index, end)))
            except TopicNotFound:
                if not self._may_lose:
                    raise self._source.gone(partition) from None
                plan = RangePlan(())
            if not self._may_lose:
                check_nothing_lost(plan.lost)
            yield plan.ranges


def _at(partition: int, place: Place) -> AtMessages:
    return AtMessages((MessageId(partition, *place.position, place.batch_index or -1),))


def subscription_of(name: str) -> str:
    """The durable subscription of a query."""
    return f"spark-{name}"


def plan_topic(name: str) -> str:
    """The topic of a query's plans."""
    return log_topic(f"spark-query-{name}")


def open_plans(client: Client, admin: Admin, name: str) -> PlanLog:
    """Take a query's plans until they are closed. Raises QueryInUse."""
    return PlanLog(client, admin, plan_topic(name), f"query {name!r}", QueryInUse)


def drop_query(name: str, *, service_url: str = "auto") -> None:
    """Forget a query that does not run: its subscriptions, positions and plans.

    Messages that it has not read are kept no longer. Does nothing for an unknown name, and may be repeated.
    Raises QueryInUse.
    """
    check_name(name)
    with Client(service_url) as client, Admin(service_url) as admin:
        forget_query(client, admin, name)


def forget_query(client: Client, admin: Admin, name: str) -> None:
    """Delete what the broker keeps of a query; see `drop_query`."""
    if plan_topic(name) not in admin.topics.list(NAMESPACE):
        return
    with open_plans(client, admin, name) as plans:
        for partition in _partitions(plans.last):
            # A partition may be none of its topic any more, which was deleted and made anew.
            with suppress(TopicNotFound, SubscriptionNotFound, NotAllowedError):
                admin.topics.unsubscribe(partition, subscription_of(name), force=True)
    admin.topics.delete(plan_topic(name), force=True)


def _partitions(record: bytes | None) -> list[str]:
    if record is None:
        return []
    _, batch = decode_batch(record)
    return sorted({*batch.places, *batch.ends})
