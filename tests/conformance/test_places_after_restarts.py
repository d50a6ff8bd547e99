"""Places of producers and consumers that outlast a restart of what serves them, over every carrier."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import ConsumerBusy, ProducerBusy, ProducerFenced, PulsarException
from pulsar_ray.model.enums import ConsumerType, ProducerAccessMode
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name
from tests.conformance.broker import Broker

PATIENCE_S = 30.0
MODES = [ProducerAccessMode.Shared, ProducerAccessMode.Exclusive]


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(
        default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1, reattach_grace_seconds=20.0
    )


class Rival(threading.Thread):
    """Tries in a loop to get a place that somebody has, until told to stop."""

    def __init__(self, attempt: Callable[[], Producer | Consumer]) -> None:
        super().__init__(daemon=True)
        self._attempt = attempt
        self._is_over = threading.Event()
        self.refused = 0
        self.got: Producer | Consumer | None = None
        self.errors: list[PulsarException] = []
        self.start()

    def run(self) -> None:
        while self.got is None and not self._is_over.is_set():
            try:
                self.got = self._attempt()
            except (ProducerBusy, ProducerFenced, ConsumerBusy):
                self.refused += 1
            except PulsarException as error:
                self.errors.append(error)

    def is_refused_again(self) -> None:
        """Wait for a refusal of an attempt that began from now on."""
        before = self.refused
        wait_until(
            lambda: self.refused >= before + 2 or not self.is_alive(), PATIENCE_S, what="two more refusals"
        )

    def end(self) -> None:
        self._is_over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.got is None, "the rival got the place"


def rival_producer(client: Client, topic: str, **options: Any) -> Rival:
    return Rival(lambda: client.create_producer(topic, **options))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_producers_name_outlasts_its_partition(
    broker: Broker, mode: ProducerAccessMode, partitions: int
) -> None:
    """A rival that wants the name, or the whole topic, is refused before and after each death."""
    topic = broker.topic(partitions)
    owner = broker.client().create_producer(topic, producer_name="x")
    first = f"{topic}-partition-0" if partitions else topic
    wanted: dict[str, Any] = (
        {"producer_name": "x"} if mode == ProducerAccessMode.Shared else {"access_mode": mode}
    )
    rival = rival_producer(broker.client(), topic, **wanted)
    sent = []
    for number in range(3):
        sent += [b"%d, %d" % (number, copy) for copy in range(max(partitions, 1))]
        for value in sent[-max(partitions, 1) :]:
            owner.send(value)
        rival.is_refused_again()
        broker.cluster.kill(partition_name(first))
        rival.is_refused_again()
    rival.end()
    owner.send(b"last")
    stored = [
        value
        for number in range(max(partitions, 1))
        for value in broker.stored(f"{topic}-partition-{number}" if partitions else topic)
    ]
    assert Counter(stored) == Counter([*sent, b"last"])


def test_the_only_producer_that_may_be_there_stays_so(broker: Broker) -> None:
    topic = broker.topic()
    broker.cluster.override(topic, max_producers_per_topic=1)
    owner = broker.client().create_producer(topic)
    rival = rival_producer(broker.client(), topic)
    for number in range(3):
        owner.send(b"%d" % number)
        rival.is_refused_again()
        broker.cluster.kill(partition_name(topic))
        rival.is_refused_again()
    rival.end()
    owner.send(b"last")
    assert broker.stored(topic) == [b"0", b"1", b"2", b"last"]


@pytest.mark.parametrize("limit", ["max_consumers_per_subscription", "max_consumers_per_topic"])
def test_the_only_consumer_that_may_be_there_stays_so(broker: Broker, limit: str) -> None:
    topic = broker.topic()
    broker.cluster.override(topic, **{limit: 1})
    options: dict[str, Any] = {"consumer_type": ConsumerType.Shared}
    owner = broker.client().subscribe(topic, "s", **options)
    producer = broker.client().create_producer(topic)
    rivals = broker.client()
    rival = Rival(lambda: rivals.subscribe(topic, "s", **options))
    for number in range(3):
        rival.is_refused_again()
        broker.cluster.kill(dispatcher_name(topic, "s", True))
        rival.is_refused_again()
        producer.send(b"%d" % number)
        message = owner.receive(20_000)
        assert message.data() == b"%d" % number
        owner.acknowledge(message)
    rival.end()


def test_who_waits_to_have_the_topic_waits_for_those_of_before_a_restart(broker: Broker) -> None:
    topic = broker.topic()
    owner = broker.client().create_producer(topic)
    broker.cluster.kill(partition_name(topic))
    waits = broker.client()
    got: list[Producer] = []
    mode = ProducerAccessMode.WaitForExclusive
    waiting = threading.Thread(target=lambda: got.append(waits.create_producer(topic, access_mode=mode)))
    waiting.start()
    owner.send(b"shared")
    assert not got
    owner.close()
    waiting.join(PATIENCE_S)
    got[0].send(b"alone")
    assert broker.stored(topic) == [b"shared", b"alone"]


def test_a_takeover_waits_for_nobody(broker: Broker) -> None:
    topic = broker.topic()
    owner = broker.client().create_producer(topic, producer_name="x")
    broker.cluster.kill(partition_name(topic))
    mode = ProducerAccessMode.ExclusiveWithFencing
    new = broker.client().create_producer(topic, producer_name="new", access_mode=mode)
    new.send(b"new")
    with pytest.raises(ProducerFenced):
        owner.send(b"old")
    assert broker.stored(topic) == [b"new"]


def test_a_name_is_free_once_its_owner_stays_away(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(reattach_grace_seconds=0.5)
    topic = broker.topic()
    broker.client().create_producer(topic, producer_name="x").send(b"first")
    broker.restart(kill=True)
    for number in range(2):
        producer = broker.client().create_producer(topic, producer_name="x")
        producer.send(b"%d" % number)
        producer.close()
    assert broker.stored(topic)[-2:] == [b"0", b"1"]


def test_who_left_before_the_restart_or_during_it_is_not_awaited(broker: Broker) -> None:
    """The grace period is longer than the operation timeout: waiting for it would fail."""
    topic = broker.topic()
    for number in range(4):
        client = broker.client(operation_timeout_seconds=15)
        producer = client.create_producer(topic, producer_name="x")
        if number % 2:
            producer.close()
        broker.cluster.kill(partition_name(topic))
        if not number % 2:
            producer.close()
