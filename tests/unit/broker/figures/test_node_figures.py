"""The metrics of a node are the sums of what its actors report, through their ends and sleeps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pulsar_ray.broker.figures.actor_report import READERS, ActorReport, Figures, StoredBacklog
from pulsar_ray.broker.figures.node_figures import MAX_ENDED_LIVES, NodeFigures, RestingPartition, check_names
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import Metric, Samples

NOW_MS = 1_700_000_000_000
NAMESPACE = "public/default"
ORDERS = "persistent://public/default/orders"

_lives = itertools.count(1)


def figures(max_topics: int = 100, max_subscriptions: int = 100) -> NodeFigures:
    return NodeFigures("store-1", max_topics, max_subscriptions)


def report(kind: str, life: int = 0, **fields: Any) -> ActorReport:
    """A report of these fields, those of its figures among them."""
    of_figures = {name: fields.pop(name) for name in ("counters", "gauges", "histograms") if name in fields}
    return ActorReport(kind=kind, life=life or next(_lives), figures=Figures(**of_figures), **fields)


def partition(topic: str = ORDERS, number: int = 1, life: int = 0, **fields: Any) -> ActorReport:
    return report("partition", life, topic=topic, number=number, **fields)


def dispatcher(subscription: str = "audit", topic: str = ORDERS, life: int = 0, **fields: Any) -> ActorReport:
    return report("dispatcher", life, topic=topic, subscription=subscription, **fields)


def messages_in(count: int) -> dict[str, float]:
    return {metrics.MESSAGES_IN.name: count}


def counter(samples: Samples, metric: Metric, *labels: str) -> float | None:
    return samples.counters.get((metric, labels))


def gauge(samples: Samples, metric: Metric, *labels: str) -> float | None:
    return samples.gauges.get((metric, labels))


def test_partitions_of_a_topic_are_added_up() -> None:
    node = figures()
    for index in range(3):
        node.reported(
            partition(f"{ORDERS}-partition-{index}", index + 1, counters=messages_in(10), gauges={})
        )
    assert counter(node.collect(NOW_MS), metrics.MESSAGES_IN, NAMESPACE, ORDERS) == 30


def test_a_newer_report_replaces_the_former_one() -> None:
    node = figures()
    node.reported(partition(life=7, counters=messages_in(10)))
    node.reported(partition(life=7, counters=messages_in(25)))
    assert counter(node.collect(NOW_MS), metrics.MESSAGES_IN, NAMESPACE, ORDERS) == 25


def test_counters_go_on_over_restarts_and_gauges_of_the_living_end() -> None:
    node = figures()
    node.reported(partition(life=7, counters=messages_in(10), gauges={metrics.PRODUCERS.name: 4}))
    node.ended(7)
    samples = node.collect(NOW_MS)
    assert counter(samples, metrics.MESSAGES_IN, NAMESPACE, ORDERS) == 10
    assert gauge(samples, metrics.PRODUCERS, NAMESPACE, ORDERS) == 0
    node.reported(partition(life=8, counters=messages_in(3), is_restarted=True))
    samples = node.collect(NOW_MS)
    assert counter(samples, metrics.MESSAGES_IN, NAMESPACE, ORDERS) == 13
    assert counter(samples, metrics.ACTOR_RESTARTS, "partition") == 1


def test_an_actor_that_was_only_cut_off_is_not_counted_twice() -> None:
    node = figures()
    histogram = {metrics.PUBLISH_LATENCY.name: [1.0] * (len(metrics.PUBLISH_LATENCY.buckets) + 2)}
    told = partition(life=7, counters=messages_in(10), histograms=histogram, recovery_s=0.5)
    node.reported(told)
    node.ended(7)
    node.reported(told)
    samples = node.collect(NOW_MS)
    assert counter(samples, metrics.MESSAGES_IN, NAMESPACE, ORDERS) == 10
    assert samples.histograms[metrics.PUBLISH_LATENCY, (NAMESPACE, ORDERS)] == [1.0] * 14
    assert sum(samples.histograms[metrics.RECOVERY_SECONDS, ("partition",)][:-1]) == 1


def test_ended_processes_are_remembered_in_bounded_memory() -> None:
    node = figures()
    for life in range(MAX_ENDED_LIVES + 50):
        node.reported(partition(life=life + 10_000, counters=messages_in(1)))
        node.ended(life + 10_000)
    assert len(node._ended_lives) == MAX_ENDED_LIVES
    assert counter(node.collect(NOW_MS), metrics.MESSAGES_IN, NAMESPACE, ORDERS) == MAX_ENDED_LIVES + 50


def test_a_backlog_stays_when_its_processes_go_and_its_age_goes_on() -> None:
    node = figures()
    backlogs = {"audit": StoredBacklog(40, 4000, NOW_MS - 60_000, 3)}
    node.reported(partition(life=7, gauges={metrics.STORAGE_BYTES.name: 9000}, backlogs=backlogs))
    node.ended(7)
    samples = node.collect(NOW_MS + 5_000)
    labels = (NAMESPACE, ORDERS, "audit")
    assert gauge(samples, metrics.BACKLOG_MESSAGES, *labels) == 40
    assert gauge(samples, metrics.BACKLOG_BYTES, *labels) == 4000
    assert gauge(samples, metrics.BACKLOG_AGE_SECONDS, *labels) == 65
    assert gauge(samples, metrics.ACK_HOLES, *labels) == 3
    assert gauge(samples, metrics.CONSUMERS, *labels) == 0
    assert gauge(samples, metrics.STORAGE_BYTES, NAMESPACE, ORDERS) == 9000


def test_a_running_dispatcher_knows_what_is_acknowledged_above_the_mark_delete_position() -> None:
    node = figures()
    node.reported(partition(backlogs={"audit": StoredBacklog(40, 4000, NOW_MS - 60_000)}))
    node.reported(dispatcher(acknowledged=30))
    samples = node.collect(NOW_MS)
    labels = (NAMESPACE, ORDERS, "audit")
    assert gauge(samples, metrics.BACKLOG_MESSAGES, *labels) == 10
    assert gauge(samples, metrics.BACKLOG_BYTES, *labels) == 1000
    assert gauge(samples, metrics.BACKLOG_AGE_SECONDS, *labels) == 60


def test_an_empty_backlog_has_no_age() -> None:
    node = figures()
    node.reported(partition(backlogs={"audit": StoredBacklog(1, 100, NOW_MS - 60_000)}))
    node.reported(dispatcher(acknowledged=1))
    assert gauge(node.collect(NOW_MS), metrics.BACKLOG_AGE_SECONDS, NAMESPACE, ORDERS, "audit") == 0


def test_the_age_of_a_partitioned_topic_is_that_of_its_oldest_message() -> None:
    node = figures()
    for index, age_ms in enumerate((5_000, 90_000, 1_000)):
        backlog = {"audit": StoredBacklog(1, 10, NOW_MS - age_ms)}
        node.reported(partition(f"{ORDERS}-partition-{index}", index + 1, backlogs=backlog))
    assert gauge(node.collect(NOW_MS), metrics.BACKLOG_AGE_SECONDS, NAMESPACE, ORDERS, "audit") == 90


def test_a_clock_that_was_set_back_gives_no_negative_age() -> None:
    node = figures()
    node.reported(partition(backlogs={"audit": StoredBacklog(1, 10, NOW_MS)}))
    samples = node.collect(NOW_MS - 3_600_000)
    assert gauge(samples, metrics.BACKLOG_AGE_SECONDS, NAMESPACE, ORDERS, "audit") == 0


def test_notes_of_sleeping_partitions_count_until_they_run_or_are_deleted() -> None:
    node = figures()
    resting = RestingPartition(ORDERS, 500, {"audit": StoredBacklog(4, 400, NOW_MS - 1000)})
    node.rests(1, resting)
    labels = (NAMESPACE, ORDERS, "audit")
    assert gauge(node.collect(NOW_MS), metrics.BACKLOG_MESSAGES, *labels) == 4
    node.reported(partition(life=7, backlogs={"audit": StoredBacklog(5, 500, NOW_MS - 1000)}))
    node.rests(1, resting)
    assert gauge(node.collect(NOW_MS), metrics.BACKLOG_MESSAGES, *labels) == 5
    node.removed(1)
    node.ended(7)
    samples = node.collect(NOW_MS)
    assert gauge(samples, metrics.BACKLOG_MESSAGES, *labels) is None
    assert gauge(samples, metrics.STORAGE_BYTES, NAMESPACE, ORDERS) is None


def test_topics_and_subscriptions_beyond_the_limits_are_summed_up() -> None:
    node = figures(max_topics=2, max_subscriptions=3)
    for number in range(5):
        topic = f"persistent://public/default/t{number}"
        node.reported(partition(topic, number + 1, counters=messages_in(10)))
        for name in ("a", "b"):
            node.reported(dispatcher(name, topic, gauges={metrics.CONSUMERS.name: 1}))
    samples = node.collect(NOW_MS)
    assert counter(samples, metrics.MESSAGES_IN, NAMESPACE, "persistent://public/default/t0") == 10
    assert counter(samples, metrics.MESSAGES_IN, NAMESPACE, "other") == 30
    assert sum(v for (m, _), v in samples.counters.items() if m is metrics.MESSAGES_IN) == 50
    consumers = {labels: v for (m, labels), v in samples.gauges.items() if m is metrics.CONSUMERS}
    assert sum(consumers.values()) == 10
    assert consumers[NAMESPACE, "other", "other"] == 6
    assert len(consumers) <= 5


def test_ten_thousand_sleeping_topics_make_few_series() -> None:
    node = figures(max_topics=50, max_subscriptions=50)
    for number in range(10_000):
        backlog = {"audit": StoredBacklog(number % 2, 100, NOW_MS - 1000)}
        node.rests(number + 1, RestingPartition(f"persistent://public/default/t{number}", 10, backlog))
    samples = node.collect(NOW_MS)
    assert len(samples.gauges) < 51 * 2 + 51 * 8
    messages = {labels: v for (m, labels), v in samples.gauges.items() if m is metrics.BACKLOG_MESSAGES}
    assert sum(messages.values()) == 5_000
    assert sum(v for (m, _), v in samples.gauges.items() if m is metrics.STORAGE_BYTES) == 100_000
    # Topics that nobody waits for take no labels from those with a backlog.
    labelled = [labels[1] for labels in messages if labels[1] != "other"]
    assert len(labelled) == 50
    assert all(messages[NAMESPACE, topic, "audit"] == 1 for topic in labelled)


def test_names_of_deleted_topics_are_forgotten() -> None:
    node = figures()
    for number in range(1, 200):
        topic = f"persistent://public/default/t{number}"
        node.reported(partition(topic, number, life=50_000 + number))
        node.removed(number)
        node.ended(50_000 + number)
        node.collect(NOW_MS)
    assert not node._places
    assert not node._resting


def test_readers_and_stores_and_reasons_have_their_labels() -> None:
    node = figures()
    node.reported(dispatcher(READERS, counters={metrics.MESSAGES_OUT.name: 5}))
    numbers = [0.0] * (len(metrics.FSYNC_SECONDS.buckets) + 2)
    refused = {f"{metrics.REFUSED_PUBLISHES.name}:disk_space": 2.0}
    node.reported(partition(counters=refused, histograms={metrics.FSYNC_SECONDS.name: numbers}))
    node.reported(report("controller", gauges={f"{metrics.TOPICS.name}:sleeping": 3}))
    samples = node.collect(NOW_MS)
    assert counter(samples, metrics.MESSAGES_OUT, NAMESPACE, ORDERS, READERS) == 5
    assert counter(samples, metrics.REFUSED_PUBLISHES, NAMESPACE, ORDERS, "disk_space") == 2
    assert (metrics.FSYNC_SECONDS, ("store-1",)) in samples.histograms
    assert gauge(samples, metrics.TOPICS, "sleeping") == 3


def test_every_sample_has_the_labels_of_its_metric() -> None:
    node = figures()
    node.reported(partition(counters=messages_in(1), backlogs={"a": StoredBacklog(1, 1, NOW_MS)}))
    node.reported(dispatcher(counters={metrics.MESSAGES_OUT.name: 1}))
    samples = node.collect(NOW_MS)
    for metric, labels in (*samples.counters, *samples.gauges, *samples.histograms):
        assert len(labels) == len(metric.labels), metric.name


def test_a_metric_that_is_not_in_the_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match="made_up"):
        check_names(partition(counters={"made_up": 1}))


def test_a_report_survives_the_way_to_the_store() -> None:
    sent = partition(
        counters=messages_in(3), backlogs={"a": StoredBacklog(1, 2, 3, 4)}, is_restarted=True, recovery_s=0.25
    )
    assert ActorReport.decode(sent.encode()) == sent


@pytest.mark.parametrize(
    "packed", [b"", b"\xc1", b"\x01", b"\x80", b"\x90", ActorReport(kind="x").encode()[:-3]]
)
def test_bytes_that_are_no_report_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="no report"):
        ActorReport.decode(packed)
