"""What actors report to the metrics of their node is what stats say, over every carrier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.figures.actor_report import READERS
from pulsar_ray.broker.figures.node_figures import NodeFigures
from pulsar_ray.broker.figures.resting_note import read_resting_notes
from pulsar_ray.client.client import Client
from pulsar_ray.errors import TopicTerminated
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.metric_catalogue import Metric, Samples
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values
from tests.conformance.non_persistent import wait_for_permits

NAMESPACE = "public/default"


def reported(broker: Broker) -> Samples:
    """Metrics of all actors that run now."""
    node = NodeFigures("s", 100, 100)
    for life, actor in enumerate(broker.cluster.actors.lives().values()):
        server = actor.server
        if server is not None and not actor.is_dead:
            report = actor.result(actor.submit(server.report), WAIT_MS / 1000)
            fields = {**vars(report), "life": life}
            node.reported(type(report).decode(type(report)(**fields).encode()))
    return node.collect(actor_time_ms(broker))


def actor_time_ms(broker: Broker) -> int:
    lives = broker.cluster.actors.lives()
    return next(iter(lives.values())).clock.now_ms() if lives else 0


def value(samples: Samples, metric: Metric, *labels: str) -> float | None:
    key = (metric, (NAMESPACE, *labels))
    return samples.counters.get(key, samples.gauges.get(key))


def test_reports_say_what_stats_say(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(partitions=2), broker.admin()
    client.subscribe(topic, "idle", initial_position=EARLIEST).close()
    consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for number in numbers(0, 30):
        producer.send(number)
    for index, message in enumerate(receive(consumer, 30)):
        if index % 3:
            consumer.acknowledge(message)

    def agree() -> bool:
        """Whether cursors and holds have come to rest: both say the same."""
        stats = admin.topics.stats(topic)["subscriptions"]["work"]
        backlog = value(reported(broker), metrics.BACKLOG_MESSAGES, topic, "work")
        return (stats["msgBacklog"], backlog) == (10, 10)

    wait_until(agree, what="the acknowledgments")
    stats, samples = admin.topics.stats(topic), reported(broker)
    of_topic: dict[Metric, Any] = {
        metrics.MESSAGES_IN: 30,
        metrics.BYTES_IN: stats["bytesInCounter"],
        metrics.STORAGE_BYTES: stats["storageSize"],
        metrics.PRODUCERS: 2,
    }
    assert {metric: value(samples, metric, topic) for metric in of_topic} == of_topic
    work, idle = stats["subscriptions"]["work"], stats["subscriptions"]["idle"]
    of_work: dict[Metric, Any] = {
        metrics.MESSAGES_OUT: work["msgOutCounter"],
        metrics.BYTES_OUT: work["bytesOutCounter"],
        metrics.UNACKED_MESSAGES: work["unackedMessages"],
        metrics.ACK_HOLES: work["nonContiguousDeletedMessagesRanges"],
        metrics.CONSUMERS: 2,
        metrics.REDELIVERED_MESSAGES: 0,
        metrics.BLOCKED_CONSUMERS: 0,
    }
    assert {metric: value(samples, metric, topic, "work") for metric in of_work} == of_work
    assert value(samples, metrics.BACKLOG_MESSAGES, topic, "idle") == idle["msgBacklog"] == 30
    assert value(samples, metrics.BACKLOG_BYTES, topic, "idle") == idle["backlogSize"]
    oldest_s = value(samples, metrics.BACKLOG_AGE_SECONDS, topic, "idle")
    assert oldest_s is not None
    assert oldest_s > 0
    latency = samples.histograms[metrics.END_TO_END_LATENCY, (NAMESPACE, topic, "work")]
    assert sum(latency[:-1]) == 30


def test_compactions_are_counted_with_their_bytes(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    with client.create_producer(topic) as producer:
        for number in range(20):
            producer.send(b"x" * 100, partition_key=str(number % 3))
    assert value(reported(broker), metrics.COMPACTED_BYTES, topic) is None, "nobody has compacted it"
    assert topics.stats_internal(topic)["compactedLedger"] is None
    topics.compact(topic)
    wait_until(lambda: topics.compaction_status(topic)["status"] == "SUCCESS")
    samples, form = reported(broker), topics.stats_internal(topic)["compactedLedger"]
    assert (form["number"], form["entries"], form["ledgers"]) == (1, 3, 1)
    assert value(samples, metrics.COMPACTED_BYTES, topic) == form["size"] > 300
    assert value(samples, metrics.COMPACTION_WRITTEN_BYTES, topic) == form["size"]
    assert (value(samples, metrics.COMPACTION_READ_BYTES, topic) or 0) > 2000
    counts = (metrics.COMPACTIONS, metrics.FAILED_COMPACTIONS, metrics.COMPACTING_PARTITIONS)
    assert [value(samples, metric, topic) for metric in counts] == [1, 0, 0]


def test_a_refusal_is_counted_by_its_reason(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(), broker.admin()
    producer = client.create_producer(topic)
    producer.send(b"a")
    admin.topics.terminate_topic(topic)
    with pytest.raises(TopicTerminated):
        producer.send(b"b")
    samples = reported(broker)
    assert (value(samples, metrics.REFUSED_PUBLISHES, topic, "terminated") or 0) >= 1
    assert value(samples, metrics.REFUSED_PUBLISHES, topic, "disk_space") == 0


def test_readers_are_one_subscription_whose_counts_stay(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    with client.create_producer(topic) as producer:
        for number in numbers(0, 5):
            producer.send(number)
    for _ in range(2):
        with client.create_reader(topic, MessageId.earliest) as reader:
            for _ in range(5):
                reader.read_next(WAIT_MS)

    def is_counted() -> bool:
        samples = reported(broker)
        is_open = bool(value(samples, metrics.CONSUMERS, topic, READERS))
        return (value(samples, metrics.MESSAGES_OUT, topic, READERS), is_open) == (10, False)

    wait_until(is_counted, what="what both readers read")


@pytest.mark.usefixtures("carriers_are_kept")
def test_losses_of_a_non_persistent_topic_are_counted(broker: Broker, client: Client) -> None:
    topic = broker.topic().replace("persistent://", "non-persistent://")
    consumer = client.subscribe(topic, "s", receiver_queue_size=2)
    wait_for_permits(broker, topic, "s")
    producer = client.create_producer(topic)
    for number in numbers(0, 50):
        producer.send(number)
    consumer.receive(WAIT_MS)

    def all_accounted_for() -> bool:
        samples = reported(broker)
        out = value(samples, metrics.MESSAGES_OUT, topic, "s")
        lost = value(samples, metrics.DROPPED_MESSAGES, topic, "s")
        return (out or 0) + (lost or 0) == 50

    wait_until(all_accounted_for, what="50 messages, sent or dropped")
    assert value(reported(broker), metrics.MESSAGES_IN, topic) == 50


def test_a_consumer_that_dies_is_counted(broker: Broker, transport: str) -> None:
    if transport not in ("socket", "tcp"):
        pytest.skip("only its socket tells at once that a client is gone")
    topic = broker.topic()
    client = broker.client()
    client.subscribe(topic, "s")
    client.shutdown()
    wait_until(lambda: value(reported(broker), metrics.CRASHED_CONSUMERS, topic, "s") == 1, what="the crash")


def test_a_sleeping_partition_leaves_its_backlogs(broker: Broker, client: Client, tmp_path: Path) -> None:
    topic, admin = broker.topic(), broker.admin()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for number in numbers(0, 10):
        producer.send(number)
    assert len(values(consumer, 10)) == 10
    consumer.close()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    for message in receive(consumer, 10):
        if int(message.data()) in (0, 1, 5):
            consumer.acknowledge(message)
    consumer.close()
    producer.close()
    before_ms = actor_time_ms(broker)
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    (partition,) = (note for _, note in read_resting_notes(tmp_path / "0" / "p") if note.topic == topic)
    backlog = partition.backlogs["s"]
    stats = admin.topics.stats(topic)["subscriptions"]["s"]
    assert backlog.entries == stats["msgBacklog"] == 7
    assert backlog.size_bytes == stats["backlogSize"]
    assert backlog.holes == stats["nonContiguousDeletedMessagesRanges"] == 1
    assert before_ms - WAIT_MS * 10 < backlog.oldest_ms <= before_ms
