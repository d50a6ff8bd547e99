"""Partitions that start while their disk is full: read as before, and go on as soon as there is space."""

from __future__ import annotations

import errno

import pytest

from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.client.client import Client
from pulsar_ray.errors import BrokerPersistenceError, DiskSpaceLow
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values

REFUSED = [errno.ENOSPC] * 1_000


def restart_on_full_disk(broker: Broker, topic: str, call: str) -> None:
    """Kill a partition; the disk takes no such call until `has_space_again`."""
    broker.cluster.kill(partition_name(topic))
    broker.cluster.disk.fail(call, *REFUSED)


def has_space_again(broker: Broker) -> None:
    broker.cluster.disk.errors.clear()


def test_what_is_stored_is_read_and_acknowledged_where_nothing_can_be_written(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
    client.create_producer(topic).send_many(numbers(0, 20))
    assert values(consumer, 5, acknowledge=True) == numbers(0, 5)
    restart_on_full_disk(broker, topic, "writev")
    reader = broker.client().create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(20)] == numbers(0, 20)
    assert values(consumer, 15, acknowledge=True) == numbers(5, 20)
    producer = broker.client().create_producer(topic)
    with pytest.raises(BrokerPersistenceError):
        producer.send(b"refused")
    with pytest.raises(BrokerPersistenceError):
        client.subscribe(topic, "new", initial_position=EARLIEST)
    has_space_again(broker)
    producer.send(b"stored")
    assert values(consumer, 1, acknowledge=True) == [b"stored"]
    broker.restart(kill=True)
    again = broker.client().create_reader(topic, MessageId.earliest)
    assert [again.read_next(WAIT_MS).data() for _ in range(21)] == [*numbers(0, 20), b"stored"]


def test_a_partition_that_began_without_space_writes_the_rest_by_itself(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.broker.partition.partition_server.BEGIN_AGAIN_S", 0.0)
    topic = broker.topic()
    client.create_producer(topic).send_many(numbers(0, 3))
    restart_on_full_disk(broker, topic, "writev")

    def is_begun() -> bool:
        server = broker.cluster.partition(topic).server
        assert server is not None
        return server.is_begun

    assert not is_begun()
    has_space_again(broker)
    wait_until(is_begun, what="manifest and reach file are written")
    reader = broker.client().create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == numbers(0, 3)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_partition_that_cannot_start_says_so_and_starts_when_it_is_asked_again(
    broker: Broker, client: Client, code: int
) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"first")
    broker.cluster.kill(partition_name(topic))
    # The epoch cannot be raised: nothing is served without it.
    broker.cluster.disk.fail("pwrite", *[code] * 1_000)
    expected = DiskSpaceLow if code == errno.ENOSPC else BrokerPersistenceError
    for _ in range(2):
        with pytest.raises(expected, match="when it is needed next") as refused:
            broker.client(operation_timeout_seconds=1).create_producer(topic)
        assert type(refused.value) is expected
    has_space_again(broker)
    assert broker.client().create_producer(topic).send(b"second").entry_id() == 0
    reader = broker.client().create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"first", b"second"]


def test_who_subscribes_is_told_that_the_partition_has_no_space_to_start(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    sent = client.create_producer(topic).send(b"first")
    restart_on_full_disk(broker, topic, "pwrite")
    with pytest.raises(DiskSpaceLow, match="when it is needed next"):
        broker.client(operation_timeout_seconds=6).subscribe(topic, "s", initial_position=EARLIEST)
    has_space_again(broker)
    consumer = broker.client().subscribe(topic, "s", initial_position=EARLIEST)
    assert consumer.receive(WAIT_MS).message_id() == sent


def test_a_consumer_that_was_there_before_opens_again_once_the_cursors_disk_takes_it(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    producer.send(b"first")
    assert values(consumer, 1, acknowledge=True) == [b"first"]
    refused: list[None] = []

    async def refuse(_subscription: ServedSubscription, *_: object) -> None:
        refused.append(None)
        raise BrokerPersistenceError("the cursor could not be written")

    with monkeypatch.context() as patch:
        patch.setattr(ServedSubscription, "open_consumer", refuse)
        broker.cluster.kill(dispatcher_name(topic, "s", durable=True))
        wait_until(lambda: len(refused) > 1, what="refused openings")
    producer.send(b"second")
    assert values(consumer, 1, acknowledge=True) == [b"second"]


def test_a_producer_that_was_there_before_waits_for_the_space(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"first")
    restart_on_full_disk(broker, topic, "pwrite")
    sent: list[object] = []
    producer.send_async(b"second", lambda result, _: sent.append(result))
    link = producer._partitions[0].link
    assert isinstance(link, ActorLink)
    wait_until(lambda: isinstance(link.last_error, DiskSpaceLow), what="its partition was asked for")
    assert not sent
    has_space_again(broker)
    wait_until(lambda: sent, what="its answer")
    reader = client.create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"first", b"second"]


def test_a_topic_that_is_made_on_a_full_disk_is_used_once_there_is_space(broker: Broker) -> None:
    topic = broker.topic()
    broker.cluster.disk.fail("pwrite", *REFUSED)
    with pytest.raises(DiskSpaceLow):
        broker.client(operation_timeout_seconds=1).create_producer(topic)
    has_space_again(broker)
    assert broker.client().create_producer(topic).send(b"x").entry_id() == 0
