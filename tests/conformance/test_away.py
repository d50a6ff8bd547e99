"""Partitions whose node is away: what is up is served, and they come back by themselves."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_ray.client.producer.routing import java_string_hash
from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.errors import PulsarException, Timeout, WrongNode
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values
from tests.conformance.event_loop import on_a_loop, turns, until

COUNT = 4
AWAY = 1


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic(COUNT)


@pytest.fixture
def away(broker: Broker, topic: str) -> str:
    """The full name of the partition whose node is away."""
    name = f"{topic}-partition-{AWAY}"
    broker.cluster.take_away(name)
    return name


class Told(ErrorCallback):
    """Keeps what it is told, with its reason."""

    def __init__(self) -> None:
        self.errors: list[PulsarException] = []

    def failed(self, error: PulsarException) -> None:
        self.errors.append(error)


def key_of(partition: int) -> str:
    return next(f"k{n}" for n in range(100) if java_string_hash(f"k{n}") % COUNT == partition)


@pytest.mark.parametrize("batching", [True, False])
def test_a_new_producer_sends_to_what_is_there(broker: Broker, away: str, topic: str, batching: bool) -> None:
    producer = broker.client().create_producer(topic, batching_enabled=batching)
    used = {producer.send(b"keyless").partition() for _ in range(12)}
    used |= {each.partition() for each in producer.send_many(numbers(0, 20))}
    assert used == {0, 2, 3}
    assert producer.send(b"keyed", partition_key=key_of(0)).partition() == 0
    with pytest.raises(WrongNode, match=f"{away}.* on far"):
        producer.send(b"keyed", partition_key=key_of(AWAY))
    with pytest.raises(WrongNode, match="on far"):
        producer.send_many([b"keyed"], partition_keys=[key_of(AWAY)])
    results: list[object] = []
    producer.send_async(b"keyed", lambda result, _: results.append(result), partition_key=key_of(AWAY))
    wait_until(lambda: results, what="the callback")
    assert results == [WrongNode.result]
    told = Told()
    producer.send_async(b"keyed", told, partition_key=key_of(AWAY))
    wait_until(lambda: told.errors, what="the callback that takes errors")
    assert "on far" in told.errors[0].text

    broker.cluster.bring_back(away)

    def is_sent() -> bool:
        try:
            return producer.send(b"keyed", partition_key=key_of(AWAY)).partition() == AWAY
        except WrongNode:
            return False

    wait_until(is_sent, what="the partition that is back")
    producer.close()


def test_keyless_messages_leave_a_partition_that_goes_away(broker: Broker, topic: str) -> None:
    # Long enough for a partition that has to start on a busy machine.
    producer = broker.client().create_producer(topic, batching_enabled=False, send_timeout_millis=5000)
    assert {producer.send(b"before").partition() for _ in range(COUNT)} == set(range(COUNT))
    name = f"{topic}-partition-{AWAY}"
    broker.cluster.take_away(name)

    def is_known() -> bool:
        try:
            producer.send(b"keyed", partition_key=key_of(AWAY))
        except WrongNode:
            return True
        except Timeout:
            return False  # it was on its way when the node went
        raise AssertionError("it was sent to a partition that is away")

    wait_until(is_known, what="the absence")
    assert {producer.send(b"during").partition() for _ in range(12)} == {0, 2, 3}
    broker.cluster.bring_back(name)
    wait_until(lambda: producer.send(b"after").partition() == AWAY, what="keyless messages everywhere")
    producer.close()


def test_a_new_consumer_receives_from_what_is_there_and_later_from_all(broker: Broker, topic: str) -> None:
    client = broker.client()
    sent = numbers(0, 16)
    producer = client.create_producer(topic, batching_enabled=False)
    for value in sent:
        producer.send(value)
    name = f"{topic}-partition-{AWAY}"
    others = [f"{topic}-partition-{part}" for part in range(COUNT) if part != AWAY]
    there = [value for other in others for value in broker.stored(other) if value is not None]
    broker.cluster.take_away(name)

    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    got = values(consumer, len(there), acknowledge=True)
    assert sorted(got) == sorted(there)
    assert not consumer.has_message_available()
    assert {last.partition() for last in consumer.get_last_message_ids()} == {0, 2, 3}
    with pytest.raises(WrongNode, match=name):
        consumer.seek(MessageId.earliest)
    with pytest.raises(WrongNode, match=name):
        consumer.unsubscribe()

    broker.cluster.bring_back(name)
    got += values(consumer, len(sent) - len(there), acknowledge=True)
    assert sorted(got) == sent
    consumer.unsubscribe()


def test_a_connected_consumer_gets_what_is_there_meanwhile(broker: Broker, topic: str) -> None:
    client = broker.client()
    consumer = client.subscribe([topic, broker.topic()], "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, batching_enabled=False)
    name = f"{topic}-partition-{AWAY}"
    broker.cluster.take_away(name)
    producer.send(b"there", partition_key=key_of(2))
    assert values(consumer, 1, acknowledge=True) == [b"there"]
    broker.cluster.bring_back(name)
    sender = broker.client().create_producer(topic, batching_enabled=False)
    sender.send(b"back", partition_key=key_of(AWAY))
    assert values(consumer, 1, acknowledge=True) == [b"back"]
    consumer.close()


def test_closing_waits_for_nobody_who_is_away(broker: Broker, topic: str) -> None:
    client = broker.client()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    broker.cluster.take_away(f"{topic}-partition-{AWAY}")
    wait_until(lambda: not consumer.is_connected() and not producer.is_connected(), what="the loss")
    consumer.close()
    producer.close()


def test_readers_and_table_views_take_what_is_there(broker: Broker, topic: str) -> None:
    client = broker.client()
    producer = client.create_producer(topic, batching_enabled=False)
    for part in range(COUNT):
        producer.send(b"value %d" % part, partition_key=key_of(part))
    name = f"{topic}-partition-{AWAY}"
    broker.cluster.take_away(name)
    reader = client.create_reader(topic, MessageId.earliest)
    view = client.create_table_view(topic)
    assert len([reader.read_next(WAIT_MS) for _ in range(COUNT - 1)]) == COUNT - 1
    assert not reader.has_message_available()
    assert len(view) == COUNT - 1
    broker.cluster.bring_back(name)
    assert reader.read_next(WAIT_MS).data() == b"value %d" % AWAY
    wait_until(lambda: len(view) == COUNT, what="the whole view")


def test_all_away_is_an_error_that_names_the_host(broker: Broker) -> None:
    client = broker.client()
    for topic, partitions in ((broker.topic(), [""]), (broker.topic(2), ["-partition-0", "-partition-1"])):
        for suffix in partitions:
            broker.cluster.take_away(topic + suffix)
        with pytest.raises(WrongNode, match="on far"):
            client.create_producer(topic)
        with pytest.raises(WrongNode, match="on far"):
            client.subscribe(topic, "s")
        with pytest.raises(WrongNode, match="on far"):
            client.create_reader(topic, MessageId.earliest)
        assert client.get_topic_partitions(topic) == [topic + suffix for suffix in partitions]


def test_an_administrator_is_shown_what_is_away_at_once(broker: Broker, away: str, topic: str) -> None:
    admin = broker.admin()
    stats = admin.topics.stats(topic)
    assert {name: "away" in each for name, each in stats["partitions"].items()} == {
        f"{topic}-partition-{part}": part == AWAY for part in range(COUNT)
    }
    assert "on far" in stats["partitions"][away]["refused"]
    assert admin.topics.stats(away)["away"]
    assert away not in admin.topics.stats_internal(topic)["partitions"]
    assert topic in admin.topics.list()
    assert admin.topics.subscriptions(topic) == []
    with pytest.raises(WrongNode, match="on far"):
        admin.topics.create_subscription(topic, "s")
    with pytest.raises(WrongNode, match="on far"):
        admin.topics.get_last_message_id(away)
    consumer = broker.client().subscribe(topic, "s")
    for call in (admin.topics.unsubscribe, admin.topics.skip_all):
        with pytest.raises(WrongNode, match="on far"):
            call(topic, "s")
    admin.topics.update_partitioned_topic(topic, COUNT + 1)
    assert admin.topics.subscriptions(f"{topic}-partition-{COUNT}") == ["s"]
    consumer.close()


@on_a_loop
@pytest.mark.parametrize("blocks", [False, True])
async def test_a_loop_goes_on_while_all_partitions_are_silent(
    broker: Broker, topic: str, blocks: bool
) -> None:
    names = [f"{topic}-partition-{part}" for part in range(COUNT)]
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, block_if_queue_full=blocks)
        queues = producer._open_already().queues
        for name in names:
            broker.cluster.kill(name, keep_down=True)
        await until(lambda: not any(queue.state.takes_keyless for queue in queues))
        sends = [asyncio.ensure_future(producer.send(value)) for value in numbers(0, 10)]
        await turns(100)
        assert not any(send.done() for send in sends)
        for name in names:
            broker.cluster.allow(name)
        ids = await asyncio.gather(*sends)
    assert len(set(ids)) == 10


@on_a_loop
@pytest.mark.parametrize("blocks", [False, True])
async def test_a_loop_is_told_that_all_partitions_are_away(broker: Broker, topic: str, blocks: bool) -> None:
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, block_if_queue_full=blocks)
        queues = producer._open_already().queues
        for part in range(COUNT):
            broker.cluster.take_away(f"{topic}-partition-{part}")
        await until(lambda: all(queue.state.absence for queue in queues))
        with pytest.raises(WrongNode, match="on far"):
            await producer.send(b"keyless")
