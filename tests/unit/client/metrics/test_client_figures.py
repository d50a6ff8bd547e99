"""Figures of a process's producers and consumers are summed up by topic and subscription."""

from __future__ import annotations

import gc

from pulsar_ray.client.metrics.client_figures import MAX_TOPICS, ClientFigures, ReceivedCounts
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.traffic import BucketCounts

TOPIC = "persistent://public/default/orders"
LABELS = ("public/default", TOPIC)


class StubProducer:
    def __init__(self, pending_messages: int) -> None:
        self.pending_messages = pending_messages


class StubConsumer:
    """One on a partition."""


def latency(*seconds: float) -> BucketCounts:
    counts = BucketCounts(metrics.CLIENT_SEND_LATENCY.buckets)
    for value in seconds:
        counts.observe(value)
    return counts


def received(messages: int, redelivered: int = 0) -> ReceivedCounts:
    counts = ReceivedCounts()
    counts.messages, counts.redelivered = messages, redelivered
    return counts


def test_partitions_and_handles_are_added_up() -> None:
    figures = ClientFigures()
    producers = [StubProducer(3), StubProducer(4)]
    consumers = [StubConsumer(), StubConsumer()]
    for index, producer in enumerate(producers):
        figures.add_producer(producer, f"{TOPIC}-partition-{index}", latency(0.01, 0.1))
    for index, consumer in enumerate(consumers):
        figures.add_consumer(consumer, f"{TOPIC}-partition-{index}", "s", received(10, 2))
    samples = figures.collect()
    assert samples.gauges == {(metrics.CLIENT_PENDING_MESSAGES, LABELS): 7}
    assert samples.counters == {
        (metrics.CLIENT_RECEIVED_MESSAGES, (*LABELS, "s")): 20,
        (metrics.CLIENT_REDELIVERED_MESSAGES, (*LABELS, "s")): 4,
    }
    assert sum(samples.histograms[metrics.CLIENT_SEND_LATENCY, LABELS][:-1]) == 4


def test_counts_of_closed_ones_stay_and_are_counted_once() -> None:
    figures = ClientFigures()
    producer, consumer = StubProducer(3), StubConsumer()
    figures.add_producer(producer, TOPIC, latency(0.01))
    figures.add_consumer(consumer, TOPIC, "s", received(10))
    del producer, consumer
    gc.collect()
    for _ in range(3):
        samples = figures.collect()
    assert samples.gauges == {}
    assert samples.counters[metrics.CLIENT_RECEIVED_MESSAGES, (*LABELS, "s")] == 10
    assert sum(samples.histograms[metrics.CLIENT_SEND_LATENCY, LABELS][:-1]) == 1
    assert not figures._sends
    assert not figures._receipts


def test_a_program_that_goes_through_many_topics_makes_few_series() -> None:
    figures = ClientFigures()
    for number in range(MAX_TOPICS * 3):
        consumer = StubConsumer()
        figures.add_consumer(consumer, f"{TOPIC}-{number}", "s", received(1))
        del consumer
        samples = figures.collect()
    assert len(samples.counters) <= (MAX_TOPICS + 1) * 2
    assert samples.counters[metrics.CLIENT_RECEIVED_MESSAGES, ("public/default", "other", "other")] == (
        MAX_TOPICS * 2
    )
