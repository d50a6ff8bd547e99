"""The overview of a node's topics, made of reports."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pulsar_ray.broker.figures.actor_report import READERS, ActorReport, Figures, StoredBacklog
from pulsar_ray.broker.figures.node_figures import DISPATCHER, PARTITION, NodeFigures, RestingPartition
from pulsar_ray.broker.figures.overview import MAX_TOPICS, SORTS, merged, node_overview
from pulsar_ray.cli.watching.top.columns import COLUMNS, View
from pulsar_ray.model import metric_catalogue as metrics

NOW_MS = 1_000_000
ORDERS = "persistent://public/default/orders"
OLD = "persistent://public/default/old"


@pytest.fixture
def figures() -> NodeFigures:
    """Labels of metrics are for two topics only, which is no concern of an overview."""
    return NodeFigures("store-1", 2, 2)


def _partition(topic: str, number: int, life: int, **fields: Any) -> ActorReport:
    gauges = {metrics.STORAGE_BYTES.name: 1000.0, metrics.PRODUCERS.name: 2.0}
    rates = {metrics.MESSAGES_IN.name: 5.0, metrics.BYTES_IN.name: 500.0}
    figures = Figures(gauges=gauges, rates=rates)
    return ActorReport(kind=PARTITION, topic=topic, number=number, life=life, figures=figures, **fields)


def _dispatcher(topic: str, subscription: str, life: int, **fields: Any) -> ActorReport:
    gauges = {metrics.UNACKED_MESSAGES.name: 3.0, metrics.CONSUMERS.name: 4.0}
    rates = {metrics.MESSAGES_OUT.name: 2.0, metrics.BYTES_OUT.name: 200.0}
    figures = Figures(gauges=gauges, rates=rates)
    return ActorReport(
        kind=DISPATCHER, topic=topic, subscription=subscription, life=life, figures=figures, **fields
    )


def overview(figures: NodeFigures, text: str = "", sort: str = "topic", limit: int = 100, **how: Any) -> Any:
    return node_overview(figures, text, sort, limit, how.get("names"), NOW_MS)


def test_partitions_and_dispatchers_are_added_up(figures: NodeFigures) -> None:
    for index in (0, 1):
        backlogs = {
            "slow": StoredBacklog(10, 1000, NOW_MS - 60_000 * (index + 1)),
            "quick": StoredBacklog(4, 400, NOW_MS - 1000),
        }
        figures.reported(_partition(f"{ORDERS}-partition-{index}", index, 10 + index, backlogs=backlogs))
        figures.reported(_dispatcher(f"{ORDERS}-partition-{index}", "quick", 20 + index, acknowledged=3))
        figures.reported(_dispatcher(f"{ORDERS}-partition-{index}", READERS, 30 + index))
    found = overview(figures)
    assert (found["topicsNotShown"], found["msgRateIn"], found["msgRateOut"]) == (0, 10, 8)
    (row,) = found["topics"]
    assert row == {
        "name": ORDERS,
        "schemaType": "",
        "state": "running",
        "partitions": 2,
        "awake": 2,
        "msgRateIn": 10,
        "msgThroughputIn": 1000,
        "msgRateOut": 8,
        "msgThroughputOut": 800,
        # Of the largest one: a topic's backlog is not the sum over its subscriptions.
        "msgBacklog": 20,
        "backlogSize": 2000,
        "oldestBacklogMessageAgeSeconds": 120.0,
        "unackedMessages": 12,
        "storageSize": 2000,
        "compactedSize": 0,
        "offloadedStorageSize": 0,
        "subscriptionCount": 3,
        # Everybody is connected to each partition.
        "producers": 2,
        "consumers": 8,
        "problem": "",
    }
    (named,) = overview(figures, names=[ORDERS])["topics"]
    assert named["subscriptions"]["quick"] == {"msgBacklog": 2, "oldestAgeSeconds": 1.0}
    assert named["subscriptions"]["slow"] == {"msgBacklog": 20, "oldestAgeSeconds": 120.0}


def test_topics_that_sleep_have_their_backlogs(figures: NodeFigures) -> None:
    figures.rests(7, RestingPartition(OLD, 5000.0, {"s": StoredBacklog(9, 900, NOW_MS - 5000)}))
    (row,) = overview(figures)["topics"]
    assert (row["state"], row["msgBacklog"], row["storageSize"]) == ("asleep", 9, 5000)
    assert (row["oldestBacklogMessageAgeSeconds"], row["subscriptionCount"]) == (5.0, 1)
    assert (row["msgRateIn"], row["consumers"], row["awake"]) == (0, 0, 0)


def test_a_process_that_died_leaves_its_topic(figures: NodeFigures) -> None:
    backlogs = {"s": StoredBacklog(9, 900, NOW_MS - 5000)}
    figures.reported(_partition(ORDERS, 1, 10, backlogs=backlogs))
    figures.ended(10)
    (row,) = overview(figures)["topics"]
    assert (row["msgBacklog"], row["awake"], row["msgRateIn"]) == (9, 0, 0)
    figures.reported(_partition(ORDERS, 1, 11, backlogs=backlogs, is_restarted=True))
    found = overview(figures)
    assert (found["topics"][0]["awake"], found["topics"][0]["partitions"]) == (1, 1)
    assert found["restarts"] == 1


def test_problems_are_said_once(figures: NodeFigures) -> None:
    for index in (0, 1):
        name = f"{ORDERS}-partition-{index}"
        figures.reported(_partition(name, index, 10 + index, problem="nothing is stored: the disk is full"))
        figures.reported(_dispatcher(name, "s", 20 + index, problem="hash 5: still drains at a"))
    (row,) = overview(figures)["topics"]
    assert row["problem"] == "nothing is stored: the disk is full; s: hash 5: still drains at a"


def test_a_clock_that_jumped_back_gives_no_negative_age(figures: NodeFigures) -> None:
    figures.rests(7, RestingPartition(OLD, 0.0, {"s": StoredBacklog(1, 9, NOW_MS + 10**9)}))
    assert overview(figures)["topics"][0]["oldestBacklogMessageAgeSeconds"] == 0


def test_filters_and_topics_of_the_brokers_own(figures: NodeFigures) -> None:
    figures.reported(_partition(ORDERS, 1, 10))
    figures.reported(_partition("persistent://public/default/__change_events-partition-0", 2, 11))
    assert [row["name"] for row in overview(figures)["topics"]] == [ORDERS]
    assert [row["name"] for row in overview(figures, "ORD")["topics"]] == [ORDERS]
    assert overview(figures, "nothing")["topics"] == []
    (own,) = overview(figures, "__change")["topics"]
    assert own["name"].endswith("__change_events")


@pytest.mark.parametrize("sort", list(SORTS))
def test_the_first_come_first_by_each_column(figures: NodeFigures, sort: str) -> None:
    for number in range(30):
        backlog = StoredBacklog(number % 7, number, NOW_MS - number)
        name = f"persistent://public/default/t{number:02}"
        if number % 3:
            problem = f"p{number}" if number % 5 == 0 else ""
            figures.reported(_partition(name, number, number, backlogs={"s": backlog}, problem=problem))
        else:
            figures.rests(number, RestingPartition(name, float(number), {"s": backlog}))
    found = overview(figures, sort=sort, limit=10)
    assert (len(found["topics"]), found["topicsNotShown"]) == (10, 20)
    everything = overview(figures, sort=sort, limit=1000)["topics"]
    assert found["topics"] == everything[:10]
    field = SORTS[sort]
    values = [row[field] for row in everything]
    if sort == "problem":
        assert all(values[:4]) and not any(values[4:])  # noqa: PT018 - the texts, then none
    elif field in ("name", "schemaType", "state"):
        assert values == sorted(values)
    else:
        known = [-1 if value is None else value for value in values]
        assert known == sorted(known, reverse=True)


def test_every_column_of_the_view_is_a_sorting() -> None:
    assert [column.name for column in COLUMNS[View.TOPICS]] == list(SORTS)


def test_ten_thousand_topics_make_a_short_answer(figures: NodeFigures) -> None:
    for number in range(10_000):
        backlogs = {"s": StoredBacklog(number, number, NOW_MS - number)}
        name = f"persistent://public/default/topic-{number}"
        figures.rests(number, RestingPartition(name, 1.0, backlogs))
    found = overview(figures, sort="backlog", limit=200)
    assert len(found["topics"]) == 200
    assert found["topicsNotShown"] == 9_800
    assert found["topics"][0]["name"].endswith("topic-9999")
    assert len(overview(figures, limit=10**6)["topics"]) == MAX_TOPICS
    assert sys.getsizeof(repr(found)) < 200 * 1000


def test_nodes_are_put_together() -> None:
    first, second = NodeFigures("a", 2, 2), NodeFigures("b", 2, 2)
    first.reported(
        _partition(f"{ORDERS}-partition-0", 0, 1, backlogs={"s": StoredBacklog(5, 50, NOW_MS - 9000)})
    )
    second.rests(
        1, RestingPartition(f"{ORDERS}-partition-1", 7.0, {"s": StoredBacklog(6, 60, NOW_MS - 20_000)})
    )
    second.rests(2, RestingPartition(OLD, 7.0, {}))
    nodes = [overview(each, names=[ORDERS, OLD]) for each in (first, second)]
    found = merged(nodes, "topic", 10)
    old, orders = found["topics"]
    assert (old["name"], old["state"]) == (OLD, "asleep")
    assert (orders["state"], orders["partitions"], orders["awake"]) == ("running", 2, 1)
    assert (orders["msgBacklog"], orders["storageSize"], orders["subscriptionCount"]) == (11, 1007, 1)
    assert orders["oldestBacklogMessageAgeSeconds"] == 20.0
    assert orders["subscriptions"] == {"s": {"msgBacklog": 11, "oldestAgeSeconds": 20.0}}
    assert merged(nodes, "topic", 1)["topicsNotShown"] == 1
