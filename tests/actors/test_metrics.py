"""Metrics of a running broker, scraped from Ray's own endpoint while known traffic flows."""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from pulsar_ray import Client, ConsumerType, InitialPosition
from pulsar_ray.admin import Admin
from pulsar_ray.broker.serving.logs.node_log import NODE_LOG
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import BROKER_METRICS, SERIES_NAMES, Metric
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import tracker_name
from pulsar_ray.transport.this_ray import running_names, session_directory
from tests.metric_scrape import DEADLINE_S, Scrape
from tests.running_broker import Broker, partition_actor

WAIT_MS = 30_000
NAMESPACE = "public/default"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with pytest.MonkeyPatch.context() as patch:
        # Ray's own default is ten seconds.
        patch.setenv("RAY_metrics_report_interval_ms", "1000")
        started = Broker(
            tmp_path_factory.mktemp("broker"),
            metrics_interval_seconds=0.5,
            idle_actor_passivation_seconds=1.0,
            metrics_max_topics=6,
            reattach_grace_seconds=1.0,
            # A directory that nodes share; without one there are no metrics of it.
            remote_url=tmp_path_factory.mktemp("shared").as_uri(),
        )
        try:
            yield started
        finally:
            started.close()


def log_lines() -> list[str]:
    """The lines of the node's log."""
    return (session_directory() / "logs" / NODE_LOG).read_text().splitlines()


def wait_for(metric: Metric, value: float, suffix: str = "", **labels: str) -> Scrape:
    """Scrape until a series has this very value."""
    seen: list[Any] = []

    def look() -> Scrape | None:
        scrape = Scrape()
        seen[:] = [scrape.value(metric.query_name + suffix, **labels)]
        return scrape if seen[0] == value else None

    try:
        found = wait_until(look, DEADLINE_S, f"{metric.name}{suffix} {labels} to be {value}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {seen}") from None
    assert found is not None
    return found


def test_counts_are_those_of_the_traffic(broker: Broker, client: Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "work",
        ConsumerType.Shared,
        receiver_queue_size=50,
        negative_ack_redelivery_delay_ms=10,
    )
    client.subscribe(topic, "idle").close()
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    received = [consumer.receive(WAIT_MS) for _ in range(20)]
    for message in received[:12]:
        consumer.acknowledge(message)
    consumer.negative_acknowledge(received[19])
    assert consumer.receive(WAIT_MS).redelivery_count() == 1
    on_topic = {"namespace": NAMESPACE, "topic": topic}
    work, idle = {**on_topic, "subscription": "work"}, {**on_topic, "subscription": "idle"}
    with Admin() as admin:

        def acknowledged() -> Any:
            found = admin.topics.stats(topic)
            return found if found["subscriptions"]["work"]["msgBacklog"] == 8 else None

        stats = wait_until(acknowledged, what="the acknowledgments")
    wait_for(metrics.MESSAGES_OUT, 21, **work)
    wait_for(metrics.BACKLOG_MESSAGES, 8, **work)
    scrape = wait_for(metrics.BACKLOG_MESSAGES, 20, **idle)
    counted = {
        metrics.MESSAGES_IN: (on_topic, 20),
        metrics.BYTES_IN: (on_topic, stats["bytesInCounter"]),
        metrics.STORAGE_BYTES: (on_topic, stats["storageSize"]),
        metrics.PRODUCERS: (on_topic, 1),
        metrics.MESSAGES_OUT: (work, stats["subscriptions"]["work"]["msgOutCounter"]),
        metrics.BYTES_OUT: (work, stats["subscriptions"]["work"]["bytesOutCounter"]),
        metrics.REDELIVERED_MESSAGES: (work, 1),
        metrics.UNACKED_MESSAGES: (work, 8),
        metrics.CONSUMERS: (work, 1),
        metrics.BACKLOG_BYTES: (idle, stats["subscriptions"]["idle"]["backlogSize"]),
    }
    for metric, (labels, value) in counted.items():
        assert scrape.value(metric.query_name, **labels) == value, metric.name
    # Each is a block of its own. The repeat counts in no latency.
    for metric, labels in ((metrics.PUBLISH_LATENCY, on_topic), (metrics.END_TO_END_LATENCY, work)):
        name = metric.query_name
        assert scrape.value(f"{name}_count", **labels) == 20
        assert scrape.value(f"{name}_bucket", le="+Inf", **labels) == 20
        buckets = [scrape.value(f"{name}_bucket", le=f"{end:g}", **labels) for end in metric.buckets]
        assert buckets == sorted(buckets, key=lambda count: count or 0)
        assert scrape.value(f"{name}_sum", **labels) is not None
    age_s = scrape.value(metrics.BACKLOG_AGE_SECONDS.query_name, **idle)
    assert age_s is not None
    assert 0 < age_s < DEADLINE_S * 10
    assert set(scrape.series) <= SERIES_NAMES
    consumer.close()
    producer.close()


@pytest.mark.long
def test_a_tracker_that_was_killed_reports_its_restart(broker: Broker, client: Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send_async(b"never now", None, deliver_after=timedelta(hours=1))
    producer.flush()
    on_topic = {"namespace": NAMESPACE, "topic": topic, "subscription": "s"}
    before = wait_for(metrics.DELAYED_MESSAGES, 1, **on_topic)
    restarts = before.value(metrics.ACTOR_RESTARTS.query_name, kind="tracker") or 0
    broker.kill(tracker_name(topic, "s"))
    scrape = wait_for(metrics.ACTOR_RESTARTS, restarts + 1, kind="tracker")
    assert (scrape.value(f"{metrics.RECOVERY_SECONDS.query_name}_count", kind="tracker") or 0) >= 1
    lines = [line for line in log_lines() if " tracker " in line and topic in line]
    assert any("serves, after its process ended" in line for line in lines), lines
    consumer.close()
    producer.close()


def test_an_endpoint_that_does_not_answer_is_logged_and_a_warning_of_health(broker: Broker) -> None:
    def look_at(actor: Any, port: int | None) -> None:
        """Have the store look at another port, and at once; None: at its own again."""
        module: Any = importlib.import_module("pulsar_ray.actors.watching.node_metrics")
        this_ray = importlib.import_module("pulsar_ray.transport.this_ray")
        module.metrics_port = this_ray.metrics_port if port is None else lambda: port
        actor._metrics._next_look_s = 0.0

    def warnings() -> list[str]:
        return [each.reason for each in admin.health().warnings if "metrics" in each.reason]

    with socket.socket() as nobody, Admin() as admin:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        broker.run_in(broker.store(), look_at, port)
        wait_until(warnings, DEADLINE_S, "a warning")
        reason = (
            f"nobody can read its metrics: its endpoint, port {port}, does not answer: Connection refused"
        )
        assert warnings() == [reason]
        assert any("WARNING store" in line and f"port {port}" in line for line in log_lines())
        broker.run_in(broker.store(), look_at, None)
        wait_until(lambda: not warnings(), DEADLINE_S, "no warning")
    assert any("the metrics of this node can be read again" in line for line in log_lines())


def test_all_metrics_of_the_broker_are_there_with_help(broker: Broker, client: Client, topic: str) -> None:
    with client.create_producer(topic) as producer, client.subscribe(topic, "s"):
        producer.send(b"a", partition_key="k")
        with Admin() as admin:
            admin.topics.compact(topic)
        gone = client.subscribe("non-persistent://public/default/passing", "p")
        wait_for(metrics.MESSAGES_IN, 1, namespace=NAMESPACE, topic=topic)
        wait_for(metrics.BACKLOG_MESSAGES, 1, namespace=NAMESPACE, topic=topic, subscription="s")
        passing = {"namespace": NAMESPACE, "topic": "non-persistent://public/default/passing"}
        wait_for(metrics.DROPPED_MESSAGES, 0, subscription="p", **passing)
        wait_for(metrics.COMPACTIONS, 1, namespace=NAMESPACE, topic=topic)
        wait_for(metrics.PARTITIONS_AWAY, 0)
        shipped = set(metrics.REMOTE_PUTS.series_names)
        wait_until(lambda: shipped <= Scrape().series.keys(), DEADLINE_S, "metrics of the object store")
        scrape = Scrape()
        gone.close()
    missing = {name for m in BROKER_METRICS for name in m.series_names} - scrape.series.keys()
    # Told of topics alone that have something there.
    only_there = set(metrics.OFFLOADED_BYTES.series_names)
    assert missing == only_there
    for metric in BROKER_METRICS:
        name = metric.series_names[0]
        if name in only_there:
            continue
        assert f"# HELP {name} {metric.help}" in scrape.text


def test_a_client_that_asks_for_it_is_among_the_metrics(broker: Broker, topic: str) -> None:
    client = broker.client(metrics=True)
    consumer = client.subscribe(topic, "s")
    with client.create_producer(topic) as producer:
        for _ in range(9):
            producer.send(b"a")
    for _ in range(9):
        consumer.receive(WAIT_MS)
    on_topic = {"namespace": NAMESPACE, "topic": topic}
    wait_for(metrics.CLIENT_RECEIVED_MESSAGES, 9, subscription="s", **on_topic)
    scrape = wait_for(metrics.CLIENT_SEND_LATENCY, 9, "_count", **on_topic)
    assert scrape.value(metrics.CLIENT_REDELIVERED_MESSAGES.query_name, subscription="s", **on_topic) == 0
    client.close()


@pytest.mark.long
def test_counters_go_on_behind_a_crash_and_the_backlog_stays(
    broker: Broker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    # One with a name of its own keeps its partition awake.
    producer = client.create_producer(topic, "p")
    for _ in range(5):
        producer.send(b"before")
    on_topic = {"namespace": NAMESPACE, "topic": topic}
    before = wait_for(metrics.MESSAGES_IN, 5, **on_topic)
    restarts = before.value(metrics.ACTOR_RESTARTS.query_name, kind="partition") or 0
    broker.kill(partition_actor(topic))
    producer.send(b"behind")
    wait_for(metrics.MESSAGES_IN, 6, **on_topic)
    scrape = wait_for(metrics.BACKLOG_MESSAGES, 6, subscription="s", **on_topic)
    assert scrape.value(metrics.ACTOR_RESTARTS.query_name, kind="partition") == restarts + 1
    assert (scrape.value(f"{metrics.RECOVERY_SECONDS.query_name}_count", kind="partition") or 0) >= 2
    producer.close()


def test_a_backlog_is_there_while_everything_sleeps_and_behind_the_store(
    broker: Broker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
    with client.create_producer(topic) as producer:
        for _ in range(7):
            producer.send(b"kept")
    wait_until(lambda: not [name for name in running_names() if topic in name], DEADLINE_S, "its sleep")
    labels = {"namespace": NAMESPACE, "topic": topic, "subscription": "s"}
    scrape = wait_for(metrics.BACKLOG_MESSAGES, 7, **labels)
    assert scrape.value(metrics.CONSUMERS.query_name, **labels) == 0
    assert (scrape.value(metrics.TOPICS.query_name, state="sleeping") or 0) >= 1
    # Another process has only the notes beside the data.
    former = broker.kill(broker.store())
    broker.wait_for_other(broker.store(), former)

    def has_another() -> bool:
        text = Scrape().text
        workers = set(re.findall(rf'ray_pulsar_ray_backlog_messages\{{.*WorkerId="(\w+)".*{topic}"', text))
        return len(workers) == 1 and bool(Scrape().value(metrics.BACKLOG_AGE_SECONDS.query_name, **labels))

    wait_until(has_another, DEADLINE_S, "the metrics of the new process alone")
    wait_for(metrics.BACKLOG_MESSAGES, 7, **labels)


@pytest.mark.long
def test_any_name_is_a_label_and_more_names_than_the_limit_are_other(broker: Broker, client: Client) -> None:
    odd = 'persistent://public/default/say "hi"\nback\\slash grü\u00dfe'
    label = "persistent://public/default/say %22hi%22%0Aback%5Cslash gr%C3%BC%C3%9Fe"
    many = [f"persistent://public/default/many-{number}" for number in range(8)]
    producers = [client.create_producer(topic) for topic in (odd, *many)]
    for producer in producers:
        producer.send(b"a")

    def all_counted() -> Scrape | None:
        scrape = Scrape()
        counts = scrape.series.get(metrics.MESSAGES_IN.query_name, {})
        other = scrape.value(metrics.MESSAGES_IN.query_name, namespace=NAMESPACE, topic="other")
        named = sum(
            count for labels, count in counts.items() if any(v == label or "many-" in v for _, v in labels)
        )
        return scrape if other is not None and named + other >= 9 else None

    scrape = wait_until(all_counted, DEADLINE_S, "the counts of all topics")
    assert scrape is not None
    topics = {dict(labels)["topic"] for labels in scrape.series[metrics.MESSAGES_IN.query_name]}
    assert len(topics) <= 4 * 6 + 1
    for producer in producers:
        producer.close()
    for topic in (odd, *many):
        broker.forget(topic)
