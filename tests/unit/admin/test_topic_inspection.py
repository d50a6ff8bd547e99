"""Stats of topics whose actors cannot be asked just now."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.admin.topic_inspection import TopicInspection
from pulsar_ray.errors import ServiceUnitNotReady
from pulsar_ray.transport.cluster import PartitionRoute
from tests.unit.admin.test_topic_stats import actor, asleep, served

TOPIC = "persistent://public/default/t"


class StubCalls:
    """A topic of one partition, with the dispatchers of two subscriptions, of which one answers."""

    timeout_s = 1.0

    def __init__(self, partition: dict[str, Any] | None, unanswered: dict[str, Any] | None) -> None:
        self._partition = partition
        self._unanswered = unanswered

    def all_routes(self, _topic: str) -> list[PartitionRoute]:
        return [PartitionRoute(TOPIC, -1, "partition", host="here")]

    def partition_stats(self, _route: PartitionRoute, _timeout_s: float) -> dict[str, Any]:
        if self._partition is None:
            raise ServiceUnitNotReady("partition is starting")
        return self._partition

    def ask_controller(self, *call: Any) -> dict[str, Any]:
        assert call[:3] == ("call_part", "schemas", "in_short")
        return {"schemaType": "AVRO", "schemaVersion": 3}

    def running_stats(self, _topic: str, subscription: str, *, durable: bool) -> dict[str, Any] | None:
        return {"s": served(4, "a")} if subscription == "s" else self._unanswered


def test_stats_say_which_schema_a_topic_has() -> None:
    found = inspect(None)
    assert (found["schemaType"], found["schemaVersion"]) == ("AVRO", 3)


def inspect(partition: dict[str, Any] | None, unanswered: dict[str, Any] | None = None) -> dict[str, Any]:
    return TopicInspection(cast("TopicCalls", StubCalls(partition, unanswered))).stats(TOPIC)


@pytest.mark.parametrize(("unanswered", "why"), [({}, "does not answer"), (None, "not known just now")])
def test_a_subscription_whose_process_is_not_asked_says_that_its_figures_are_not_known(
    unanswered: dict[str, Any] | None, why: str
) -> None:
    running = [{**asleep(name, 4), "isServed": True} for name in ("s", "t")]
    stats = inspect(actor(*running, hasReaders=False), unanswered)["subscriptions"]
    assert stats["s"]["problem"] == ""
    assert why in stats["t"]["problem"]
    assert "here" in stats["t"]["problem"]


def test_a_partition_that_is_starting_says_that_nothing_is_known() -> None:
    stats = inspect(None)
    assert stats["subscriptions"] == {}
    assert stats["refused"].startswith("it does not answer on here: ")
