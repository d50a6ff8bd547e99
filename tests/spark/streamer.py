"""A query's batches on a broker in this process, without Ray and Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from pulsar_ray.admin.topics import Topics as AdminTopics
from pulsar_ray.client.client import Client
from pulsar_ray.clock import SystemClock
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.plan import Bound, Topics
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import NotConnected
from pulsar_ray_spark.rounds.plan_log import PlanLog
from pulsar_ray_spark.rounds.topic_source import TopicSource, full_names
from pulsar_ray_spark.streaming.batch_limits import BatchLimits
from pulsar_ray_spark.streaming.micro_batches import BatchRun, MicroBatches
from pulsar_ray_spark.streaming.planned_batch import Place, PlannedBatch, QueryIdentity, is_behind
from pulsar_ray_spark.streaming.query_topics import QueryTopics, open_plans, subscription_of
from tests.conformance.broker import Broker

NAME = "q"


class Killed(BaseException):
    """As if the process ended here."""


class Killer:
    """Ends the query at its `moment`th step: a plan stored, a function's return, an acknowledgment."""

    def __init__(self, moment: int | None = None) -> None:
        self.moment = moment
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.moment:
            raise Killed


class KilledPlans:
    def __init__(self, plans: PlanLog, killer: Killer) -> None:
        self._plans = plans
        self._killer = killer

    @property
    def last(self) -> bytes | None:
        return self._plans.last

    def append(self, record: bytes) -> None:
        self._killer.step()
        self._plans.append(record)
        self._killer.step()


class KilledTopics(QueryTopics):
    killer: Killer
    broken = 0

    def acknowledge(self, places: Mapping[str, Place]) -> None:
        self.killer.step()
        if self.broken:
            self.broken -= 1
            raise NotConnected("away for a moment")
        super().acknowledge(places)


class Streamer:
    """Runs a query's batches, as often as a test likes, into a sink that keeps the last output per id."""

    def __init__(self, broker: Broker, topics: str | list[str] | re.Pattern[str]) -> None:
        self.broker = broker
        self.admin = broker.admin()
        self.topics: Topics = [topics] if isinstance(topics, str) else topics
        self.limits = BatchLimits()
        self.may_lose = False
        self.sink: dict[int, list[str]] = {}
        self.runs: list[BatchRun] = []

    def opened(self, stack: ExitStack, killer: Killer | None = None) -> tuple[MicroBatches, KilledTopics]:
        killer = killer or Killer()
        plans = stack.enter_context(open_plans(self.broker.client(), self.admin, NAME))
        source = TopicSource(
            self.admin, self.topics, subscription_of(NAME), fail_on_data_loss=not self.may_lose
        )
        topics = KilledTopics(
            self.admin, source, BrokerPlanner.on(self.admin.cluster), may_lose=self.may_lose
        )
        topics.killer = killer

        def run(batch: PlannedBatch) -> int:
            values: list[str] = []
            for partition, (first, end) in batch.ranges.items():
                with topics.leased(partition, first, end) as ranges:
                    for rows in (rows for each in ranges for rows in stored_rows(each)):
                        found = rows.block.values()[rows.start : rows.stop]
                        values += [(value or b"").decode() for value in found]
            before = self.sink.setdefault(batch.number, values)
            assert before == values, f"batch {batch.number} has other rows in its rerun"
            killer.step()
            return len(values)

        identity = QueryIdentity(NAME, "id", full_names(self.topics))
        batches = MicroBatches(identity, topics, KilledPlans(plans, killer), run, self.limits, SystemClock())
        return batches, topics

    def stream(self, start: Bound = "earliest", killer: Killer | None = None) -> int:
        """Run batches with all that is there; how many."""
        with ExitStack() as stack:
            batches, _ = self.opened(stack, killer)
            batches.begin(start)
            return self.drain(batches)

    def drain(self, batches: MicroBatches) -> int:
        ends, count = batches.ends(), 0
        while (batch := batches.plan_next(ends)) is not None:
            self.runs.append(batches.run(batch, ends))
            count += 1
        assert not is_behind(batches.places, ends)
        return count

    def values(self) -> list[str]:
        return [value for _, values in sorted(self.sink.items()) for value in values]

    def backlog(self, topic: str) -> int:
        stats = self.admin.topics.stats(topic)["subscriptions"]
        return int(stats[subscription_of(NAME)]["msgBacklog"])


def numbered(*bounds: int) -> list[str]:
    return [f"m{number}" for number in range(*bounds)]


def make_anew(topics: AdminTopics, topic: str, partitions: int) -> None:
    """Delete a topic, and make one of its name, without partitions for 0, whose messages are kept."""
    topics.delete(topic, force=True)
    topics.create_partitioned_topic(topic, partitions) if partitions else topics.create_topic(topic)
    topics.create_subscription(topic, "keep")


def publish_to(client: Client, topic: str, values: Iterable[str]) -> None:
    """Publish in batches of up to seven messages."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=7, block_if_queue_full=True
    )
    for value in values:
        producer.send_async(value.encode(), None)
    producer.flush()
    producer.close()
