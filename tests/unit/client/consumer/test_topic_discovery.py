"""What a look attaches and drops; looks are called here, no time passes."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.topic_selection import TopicDiscovery
from pulsar_ray.client.options.consumer_options import ConsumerOptions, Topics
from pulsar_ray.client.received.block_decoder import SegmentFiles
from pulsar_ray.client.received.receiver_queue import ConsumedCount
from pulsar_ray.errors import (
    AlreadyClosed,
    ConsumerBusy,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.transport.cluster import PartitionRoute

TOPIC = "persistent://public/default/t"


class Part:
    """What of a PartitionConsumer a look uses."""

    def __init__(self, route: PartitionRoute) -> None:
        self.route = route
        self.deliveries = self
        self.session = self
        self.count = ConsumedCount(None)
        self.is_abandoned = False

    def is_of(self, directory: str | None) -> bool:
        return directory in (None, "first")

    def abandon(self) -> None:
        self.is_abandoned = True


class Looker:
    """A discovery over partitions that are there."""

    def __init__(self, topic: Topics, *there: int) -> None:
        self.core = ConsumerCore(
            ConsumerOptions(topic=topic, subscription_name="s"), "c", "s", SegmentFiles()
        )
        self.there = list(there)
        self.refusals: list[PulsarException] = []
        self.discovery = TopicDiscovery(self.core, self._find, self._attach, 60)

    def _find(self) -> list[PartitionRoute]:
        return [PartitionRoute(f"{TOPIC}-partition-{index}", index, "") for index in self.there]

    def _attach(self, route: PartitionRoute) -> None:
        if self.refusals:
            raise self.refusals.pop()
        part: Any = Part(route)
        self.core.partitions.add(part)

    def look(self) -> list[int]:
        """The partitions the consumer has after a look."""
        self.discovery._look()
        return [partition.route.partition for partition in self.core.partitions.all]

    def fail(self, index: int, error: PulsarException) -> Any:
        part = self.core.partitions.by_topic[f"{TOPIC}-partition-{index}"]
        self.core.partition_failed(part, error)
        return part


def test_a_topic_that_grows_gives_its_consumer_the_new_partitions() -> None:
    looker = Looker(TOPIC, 0)
    assert looker.look() == [0]
    assert len(looker.core.partitions.all) == 1
    looker.there = [0, 1, 2]
    assert looker.look() == [0, 1, 2]
    assert looker.core.partitions.single is None, "acknowledgments go by topic now"
    assert looker.look() == [0, 1, 2]


def test_partitions_of_one_topic_never_go_by_themselves() -> None:
    looker = Looker(TOPIC, 0, 1)
    looker.look()
    looker.there = []
    assert looker.look() == [0, 1]
    looker.fail(0, TopicNotFound("deleted"))
    assert looker.core.has_failed, "as a consumer of an unpartitioned topic would"


def test_of_several_topics_what_is_gone_is_dropped_and_found_again() -> None:
    looker = Looker([TOPIC], 0, 1)
    looker.look()
    gone = looker.fail(0, TopicNotFound("deleted"))
    assert gone.is_abandoned
    assert looker.look() == [1, 0], "it was there again before the next look"
    looker.there = [1]
    assert looker.look() == [1]
    assert not looker.core.has_failed
    assert set(looker.core.partitions.gone) == {f"{TOPIC}-partition-0"}


def test_a_deleted_subscription_is_not_brought_back_until_its_topic_was_away() -> None:
    looker = Looker([TOPIC], 0, 1)
    looker.look()
    looker.fail(0, SubscriptionNotFound("deleted"))
    assert looker.look() == looker.look() == [1]
    looker.there = [1]
    looker.look()
    looker.there = [0, 1]
    assert looker.look() == [1, 0]


def test_a_topic_that_was_created_again_is_not_one_whose_subscription_was_deleted() -> None:
    looker = Looker([TOPIC], 0, 1)
    looker.look()
    looker.fail(0, SubscriptionNotFound("of another partition of this name", "second"))
    assert looker.look() == [1, 0]
    looker.fail(0, SubscriptionNotFound("of the one it was open on", "first"))
    assert looker.look() == [1]


def test_what_is_refused_is_tried_again_and_a_closed_client_ends_it() -> None:
    looker = Looker([TOPIC], 0, 1)
    looker.refusals = [ConsumerBusy("somebody else has it")]
    assert looker.look() == [1]
    assert looker.look() == [1, 0]
    looker.there.append(2)
    looker.refusals = [AlreadyClosed("the client is closed")]
    looker.look()
    assert looker.look() == [1, 0]


def test_a_refusal_is_logged_when_its_reason_changes(caplog: pytest.LogCaptureFixture) -> None:
    looker = Looker([TOPIC], 0)
    for reason in ("one", "one", "two", "two"):
        looker.refusals = [ConsumerBusy(reason)]
        assert looker.look() == []
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["one", "two"]
    looker.look()
    looker.core.partitions.remove(looker.core.partitions.all[0])
    looker.refusals = [ConsumerBusy("two")]
    looker.look()
    assert len(caplog.records) == 3
