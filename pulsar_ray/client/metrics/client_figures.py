"""Adds up the figures of a process's producers and consumers. Plain; thread-safe."""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple, Protocol

from pulsar_ray.broker.figures.label_limiter import LabelLimiter
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import OTHER, Samples
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.model.traffic import BucketCounts, add_numbers

MAX_TOPICS = 100
"""Topics of a process with labels of their own; the rest is `other`."""
MAX_SUBSCRIPTIONS = 100


class ReceivedCounts:
    """Messages that a consumer was sent from one partition; they only grow."""

    __slots__ = ("messages", "redelivered")

    def __init__(self) -> None:
        self.messages = 0
        self.redelivered = 0


class PendingSends(Protocol):
    """A producer on one partition."""

    @property
    def pending_messages(self) -> int:
        """How many messages were sent and have no receipt."""


class _Sends(NamedTuple):
    producer: weakref.ref[PendingSends]
    topic: str
    latency: BucketCounts


class _Receipts(NamedTuple):
    consumer: weakref.ref[object]
    topic: str
    subscription: str
    counts: ReceivedCounts


class ClientFigures:
    """Knows each producer and consumer on a partition for as long as there is one.

    The counts of those that are gone stay in the sums.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics = LabelLimiter(MAX_TOPICS)
        self._subscriptions = LabelLimiter(MAX_SUBSCRIPTIONS)
        self._sends: list[_Sends] = []
        self._receipts: list[_Receipts] = []
        self._gone = Samples()

    def add_producer(self, producer: PendingSends, topic: str, latency: BucketCounts) -> None:
        """Count a producer on a partition from now on."""
        with self._lock:
            self._sends.append(_Sends(weakref.ref(producer), topic, latency))

    def add_consumer(self, consumer: object, topic: str, subscription: str, counts: ReceivedCounts) -> None:
        """Count a consumer on a partition from now on."""
        with self._lock:
            self._receipts.append(_Receipts(weakref.ref(consumer), topic, subscription, counts))

    def collect(self) -> Samples:
        """Return the samples of now."""
        with self._lock:
            for sends in self._sends:
                if sends.producer() is None:
                    self._add_latency(self._gone, sends)
            for receipts in self._receipts:
                if receipts.consumer() is None:
                    self._add_received(self._gone, receipts)
            self._sends = [sends for sends in self._sends if sends.producer() is not None]
            self._receipts = [receipts for receipts in self._receipts if receipts.consumer() is not None]
            return self._sum()

    def _sum(self) -> Samples:
        gone = self._gone
        samples = Samples(dict(gone.counters), {}, {key: list(of) for key, of in gone.histograms.items()})
        for sends in self._sends:
            self._add_latency(samples, sends)
            key = metrics.CLIENT_PENDING_MESSAGES, self._of_topic(sends.topic)
            producer = sends.producer()
            pending = 0 if producer is None else producer.pending_messages
            samples.gauges[key] = samples.gauges.get(key, 0) + pending
        for receipts in self._receipts:
            self._add_received(samples, receipts)
        return samples

    def _add_latency(self, samples: Samples, sends: _Sends) -> None:
        key = metrics.CLIENT_SEND_LATENCY, self._of_topic(sends.topic)
        samples.histograms[key] = add_numbers(samples.histograms.get(key), sends.latency.numbers())

    def _add_received(self, samples: Samples, receipts: _Receipts) -> None:
        labels = self._of_topic(receipts.topic)
        name = (labels[1], receipts.subscription)
        is_labelled = labels[1] != OTHER
        labels += (self._subscriptions.label(name, receipts.subscription, may_take=is_labelled),)
        for metric, count in (
            (metrics.CLIENT_RECEIVED_MESSAGES, receipts.counts.messages),
            (metrics.CLIENT_REDELIVERED_MESSAGES, receipts.counts.redelivered),
        ):
            samples.counters[metric, labels] = samples.counters.get((metric, labels), 0) + count

    def _of_topic(self, partition: str) -> tuple[str, ...]:
        name = TopicName.parse(partition)
        topic = name.partitioned_full
        return name.namespace_name, self._topics.label(topic, topic)
