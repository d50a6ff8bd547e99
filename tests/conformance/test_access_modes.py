"""Producers that have a topic for themselves, wait for that, or are evicted, over every carrier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import (
    NotAllowedError,
    ProducerBusy,
    ProducerFenced,
    PulsarException,
    Result,
)
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import partition_name
from tests.conformance.broker import Broker
from tests.conformance.event_loop import on_a_loop, until

SHARED = ProducerAccessMode.Shared
EXCLUSIVE = ProducerAccessMode.Exclusive
FENCING = ProducerAccessMode.ExclusiveWithFencing
WAITING = ProducerAccessMode.WaitForExclusive


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)


class Opening(threading.Thread):
    """Creates a producer in a thread of its own."""

    def __init__(
        self, client: Client, topic: str, mode: ProducerAccessMode = WAITING, **options: Any
    ) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._arguments = {"topic": topic, "access_mode": mode, **options}
        self.producer: Producer | None = None
        self.error: PulsarException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.producer = self._client.create_producer(**self._arguments)
        except PulsarException as error:
            self.error = error

    def opened(self) -> Producer:
        """The producer, once it has its turn."""
        self.join(20)
        assert self.error is None, self.error
        assert self.producer is not None
        return self.producer


def stats(broker: Broker, topic: str) -> dict[str, Any]:
    server = broker.cluster.partition(topic).server
    assert server is not None
    return server.stats()


def waiting(broker: Broker, topic: str, count: int) -> None:
    wait_until(lambda: stats(broker, topic)["waitingPublishers"] == count, what=f"{count} waiting producers")


@pytest.mark.parametrize("mode", [EXCLUSIVE, FENCING, WAITING])
def test_a_holder_is_the_only_writer(broker: Broker, mode: ProducerAccessMode) -> None:
    topic, first, second = broker.topic(), broker.client(), broker.client()
    assert stats(broker, topic)["topicEpoch"] == -1
    holder = first.create_producer(topic, access_mode=mode)
    assert stats(broker, topic)["topicEpoch"] == 0
    assert stats(broker, topic)["publishers"][0]["accessMode"] == mode.name
    for client in (first, second):
        with pytest.raises(ProducerBusy, match="for itself"):
            client.create_producer(topic)
        with pytest.raises(ProducerFenced, match="WaitForExclusive"):
            client.create_producer(topic, access_mode=EXCLUSIVE)
    holder.send(b"v")
    holder.close()
    second.create_producer(topic, access_mode=EXCLUSIVE).send(b"w")
    assert stats(broker, topic)["topicEpoch"] == 1
    assert broker.stored(topic) == [b"v", b"w"]


def test_exclusive_is_refused_beside_anybody(broker: Broker, client: Client, transport: str) -> None:
    if transport == "sleepy":
        pytest.skip("a producer that shares a topic keeps nobody out while its partition sleeps")
    topic = broker.topic()
    shared = client.create_producer(topic)
    with pytest.raises(ProducerFenced, match="has 1 producers"):
        client.create_producer(topic, access_mode=EXCLUSIVE)
    shared.send(b"v")
    shared.close()
    client.create_producer(topic, access_mode=EXCLUSIVE)


@pytest.mark.parametrize("mode", [SHARED, EXCLUSIVE, FENCING, WAITING])
def test_an_evicted_producer_learns_it_at_its_next_send(broker: Broker, mode: ProducerAccessMode) -> None:
    topic = broker.topic()
    old = broker.client().create_producer(topic, "leader", access_mode=mode)
    old.send(b"old")
    new = broker.client().create_producer(topic, "leader", access_mode=FENCING)
    with pytest.raises(ProducerFenced, match="evicted"):
        old.send(b"too late")
    results: list[Any] = []
    old.send_async(b"too late", lambda result, _: results.append(result))
    assert results == [Result.ProducerFenced]
    with pytest.raises(ProducerFenced):
        old.flush()
    assert not old.is_connected()
    old.close()
    new.send(b"new")
    assert broker.stored(topic) == [b"old", b"new"]
    new.close()
    again = broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    again.send(b"again")


def test_waiting_producers_get_their_turn_in_order(broker: Broker) -> None:
    topic = broker.topic()
    producers = [broker.client().create_producer(topic, "p0", access_mode=WAITING)]
    openings = []
    for number in (1, 2):
        openings.append(
            Opening(broker.client(operation_timeout_seconds=1), topic, producer_name=f"p{number}")
        )
        waiting(broker, topic, number)
    with pytest.raises(ProducerBusy):
        broker.client().create_producer(topic)
    for number, opening in enumerate(openings):
        producers[-1].send(b"%d" % number)
        assert opening.producer is None
        producers[-1].close()
        producers.append(opening.opened())
    producers[-1].send(b"2")
    assert broker.stored(topic) == [b"0", b"1", b"2"]
    assert stats(broker, topic)["topicEpoch"] == 2


def test_waiting_outlasts_the_operation_timeout_and_the_partition(broker: Broker) -> None:
    topic = broker.topic()
    holder = broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    opening = Opening(broker.client(operation_timeout_seconds=1), topic)
    waiting(broker, topic, 1)
    opening.join(1.5)
    broker.cluster.kill(partition_name(topic))
    holder.send(b"still the holder")
    waiting(broker, topic, 1)
    assert opening.is_alive()
    holder.close()
    opening.opened().send(b"turn")
    assert broker.stored(topic) == [b"still the holder", b"turn"]


def test_a_waiting_producer_leaves_with_its_client(broker: Broker, transport: str) -> None:
    if transport in ("ray", "lossy"):
        pytest.skip("a client that was shut down tells the tunnel nothing: its lease has to end")
    topic = broker.topic()
    broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    leaving = broker.client()
    opening = Opening(leaving, topic)
    waiting(broker, topic, 1)
    leaving.shutdown()
    opening.join(20)
    assert isinstance(opening.error, PulsarException)
    waiting(broker, topic, 0)


@pytest.mark.usefixtures("carriers_are_kept")  # who asks again behind the takeover waits for the new holder
def test_a_takeover_refuses_those_that_wait(broker: Broker) -> None:
    topic = broker.topic()
    holder = broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    opening = Opening(broker.client(), topic)
    waiting(broker, topic, 1)
    new = broker.client().create_producer(topic, access_mode=FENCING)
    opening.join(20)
    assert isinstance(opening.error, ProducerFenced)
    with pytest.raises(ProducerFenced):
        holder.send(b"v")
    new.send(b"w")
    assert broker.stored(topic) == [b"w"]


@pytest.mark.parametrize("mode", [EXCLUSIVE, FENCING, WAITING])
def test_a_holder_keeps_its_place_over_restarts_and_cuts(broker: Broker, mode: ProducerAccessMode) -> None:
    topic = broker.topic()
    holder = broker.client().create_producer(topic, access_mode=mode)
    for number in range(3):
        holder.send(b"%d" % number)
        if number == 0:
            broker.cluster.cut_lanes(topic)
        else:
            broker.cluster.kill(partition_name(topic))
        with pytest.raises(ProducerFenced):
            broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    holder.send(b"3")
    assert stats(broker, topic)["topicEpoch"] == 0
    assert broker.stored(topic) == [b"0", b"1", b"2", b"3"]


def test_epochs_go_on_after_a_restart_of_everything(broker: Broker) -> None:
    topic = broker.topic()
    for epoch in range(3):
        producer = broker.client().create_producer(topic, access_mode=EXCLUSIVE)
        assert stats(broker, topic)["topicEpoch"] == epoch
        producer.send(b"v")
        broker.restart(kill=epoch % 2 == 0)


def test_a_partitioned_topic_is_taken_as_a_whole(broker: Broker) -> None:
    topic = broker.topic(3)
    holder = broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(ProducerFenced):
        broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    opening = Opening(broker.client(), topic)
    waiting(broker, f"{topic}-partition-0", 1)
    holder.close()
    second = opening.opened()
    second.send_many([b"%d" % n for n in range(9)], partition_keys=[f"k{n}" for n in range(9)])
    third = broker.client().create_producer(topic, access_mode=FENCING)
    with pytest.raises(ProducerFenced):
        second.send_many([b"%d" % n for n in range(9)], partition_keys=[f"k{n}" for n in range(9)])
    third.send(b"v")


def test_a_refusal_undoes_the_partitions_that_were_taken(
    broker: Broker, client: Client, transport: str
) -> None:
    if transport == "sleepy":
        pytest.skip("a producer that shares a topic keeps nobody out while its partition sleeps")
    topic = broker.topic(3)
    last = client.create_producer(f"{topic}-partition-2")
    with pytest.raises(ProducerFenced):
        broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    client.create_producer(f"{topic}-partition-0").send(b"v")
    last.send(b"w")


def test_an_administrator_sees_epochs_and_who_waits(broker: Broker) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    seen = topics.stats(topic)
    assert (seen["topicEpoch"], seen["waitingPublishers"]) == (-1, 0)
    holder = broker.client().create_producer(topic, access_mode=EXCLUSIVE)
    opening = Opening(broker.client(), topic)
    waiting(broker, topic, 1)
    seen = topics.stats(topic)
    assert (seen["topicEpoch"], seen["waitingPublishers"]) == (0, 1)
    holder.close()
    opening.opened()
    seen = topics.stats(topic)
    assert (seen["topicEpoch"], seen["waitingPublishers"]) == (1, 0)


@on_a_loop
async def test_modes_on_an_event_loop(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client, broker.asyncio_client() as another:
        holder = await client.create_producer(topic, access_mode=EXCLUSIVE)
        with pytest.raises(ProducerFenced):
            await another.create_producer(topic, access_mode=EXCLUSIVE)
        with pytest.raises(ProducerBusy):
            await another.create_producer(topic)
        opening = asyncio.create_task(another.create_producer(topic, access_mode=WAITING))
        await until(lambda: stats(broker, topic)["waitingPublishers"] == 1)
        await holder.send(b"0")
        await holder.close()
        second = await opening
        await second.send(b"1")
        third = await client.create_producer(topic, access_mode=FENCING)
        with pytest.raises(ProducerFenced):
            await second.send(b"x")
        await third.send(b"2")
    assert broker.stored(topic) == [b"0", b"1", b"2"]


def test_a_non_persistent_topic_has_no_epoch(client: Client) -> None:
    with pytest.raises(NotAllowedError, match="keeps no topic epoch"):
        client.create_producer("non-persistent://public/default/np", access_mode=EXCLUSIVE)
