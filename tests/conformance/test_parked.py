"""Clients whose actors have gone to sleep: parked, until they need them or somebody publishes."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.endpoint import wake_poll
from pulsar_ray.errors import ConsumerBusy, NotAllowedError, PulsarException, TopicNotFound
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.actor_names import parse_dispatcher_name, partition_name
from tests.conformance.broker import (
    EARLIEST,
    WAIT_MS,
    Broker,
    keyed_numbers,
    numbers,
    receive,
    values,
)
from tests.conformance.event_loop import on_a_loop, until
from tests.conformance.test_failover import Watch, active_of
from tests.conformance.test_lifecycle import pickled

Quiet = Callable[[Consumer], None]
ALL_TYPES = (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared)


def links_of(*handles: Any) -> list[ActorLink]:
    """The links of producers, consumers, readers."""
    links = []
    for handle in handles:
        inner = getattr(handle, "_inner", handle)
        inner = getattr(inner, "_consumer", inner)
        partitions = inner._partitions if isinstance(inner._partitions, list) else inner._partitions.all
        links += [partition.link for partition in partitions]
    return links


def park(broker: Broker, topics: str | list[str], *handles: Any) -> None:
    """Put topics to sleep until all these handles are parked.

    One that was signalled just before, for its topic was in use, may wake that once more.
    """
    names = [topics] if isinstance(topics, str) else topics

    def sleeps() -> bool:
        for topic in names:
            broker.cluster.put_to_sleep(topic, with_clients=True)
        return all(link.is_parked for link in links_of(*handles)) and not any(
            runs_of(broker, topic) for topic in names
        )

    wait_until(sleeps, 60, "parked links")


def runs_of(broker: Broker, topic: str) -> int:
    """How many actors of a topic run."""
    dispatchers = [parse_dispatcher_name(address) for address in broker.cluster.addresses]
    is_running = partition_name(topic) in broker.cluster.addresses
    return is_running + sum(found is not None and found[0] == topic for found in dispatchers)


def test_publishing_elsewhere_wakes_a_parked_consumer(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    assert values(consumer, 1, acknowledge=True) == [b"before"]
    park(broker, topic, consumer, producer)
    wait_until(consumer.is_connected, what="it is connected")
    wait_until(producer.is_connected, what="it is connected")
    assert_quiet(consumer)
    assert runs_of(broker, topic) == 0, "waiting for a message needs nobody"
    other = broker.client().create_producer(topic)
    for value in numbers(0, 20):
        other.send_async(value, None)
    other.flush()
    assert values(consumer, 20, acknowledge=True) == numbers(0, 20)
    assert_quiet(consumer)
    producer.send(b"after")
    assert values(consumer, 1) == [b"after"]


def test_a_parked_consumer_is_woken_though_the_controller_died(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    park(broker, topic, consumer, producer)
    broker.cluster.kill_controller()
    broker.client().create_producer(topic).send(b"x")
    assert values(consumer, 1, acknowledge=True) == [b"x"]
    park(broker, topic, consumer, producer)
    broker.client().create_producer(topic).send(b"y")
    broker.cluster.kill_controller()
    assert values(consumer, 1) == [b"y"]


def test_a_parked_producer_wakes_its_topic_by_sending(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(topic, batching_enabled=batching) for batching in (False, True)]
    sent = 0
    for _ in range(2):
        for producer in producers:
            park(broker, topic, *producers, consumer)
            producer.send(b"%06d" % sent)
            for number in range(sent + 1, sent + 5):
                producer.send_async(b"%06d" % number, None)
            producer.flush()
            sent += 5
            assert values(consumer, 5, acknowledge=True) == numbers(sent - 5, sent)
    assert broker.stored(topic)[-5:] == numbers(sent - 5, sent)


def test_a_bulk_is_sent_by_a_parked_producer(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    park(broker, topic, producer)
    producer.send_many(numbers(0, 100))
    assert broker.stored(topic) == numbers(0, 100)


def test_many_sleeps_lose_and_repeat_nothing(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    got: list[bytes] = []
    for start in range(0, 60, 10):
        for value in numbers(start, start + 10):
            producer.send_async(value, None)
        producer.flush()
        got += values(consumer, 10, acknowledge=True)
        park(broker, topic, consumer, producer)
    assert got == numbers(0, 60)
    assert_quiet(consumer)


def test_actors_that_fall_asleep_at_any_moment_lose_and_repeat_nothing(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, max_pending_messages=10_000)
    is_over = threading.Event()

    def leave_often() -> None:
        while not is_over.is_set():
            broker.cluster.put_to_sleep(topic, with_clients=True)

    leaving = threading.Thread(target=leave_often, daemon=True)
    leaving.start()
    results: list[Any] = []
    for value in numbers(0, 300):
        producer.send_async(value, lambda result, _id: results.append(result))
        if value.endswith(b"9"):
            time.sleep(0.003)
    got = values(consumer, 300, acknowledge=True)
    is_over.set()
    leaving.join()
    producer.flush()
    assert got == numbers(0, 300)
    assert {int(result) for result in results} == {0}
    assert_quiet(consumer)


@pytest.mark.parametrize("consumer_type", ALL_TYPES)
def test_a_parked_consumer_is_told_of_its_topics_end(
    broker: Broker, client: Client, consumer_type: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", consumer_type)
    park(broker, topic, consumer)
    broker.cluster.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        consumer.receive(WAIT_MS)
    assert not consumer.is_connected()


def test_a_parked_consumer_keeps_its_topic_and_a_silent_producer_does_not(
    broker: Broker, client: Client
) -> None:
    admin, consumed, published = broker.admin(), broker.topic(), broker.topic()
    consumer, producer = client.subscribe(consumed, "s"), client.create_producer(published)
    park(broker, [consumed, published], consumer, producer)
    wait_until(lambda: broker.cluster.waiting_clients(consumed), what="a client that waits")
    with pytest.raises(NotAllowedError, match="1 connected"):
        admin.topics.delete(consumed)
    admin.topics.delete(published)
    admin.topics.delete(consumed, force=True)
    with pytest.raises(TopicNotFound):
        consumer.receive(WAIT_MS)


def test_acknowledging_wakes(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 10)]
    producer.close()
    first = client.subscribe(topic, "s", initial_position=EARLIEST, ack_receipt_enabled=True)
    first.acknowledge_cumulative(receive(first, 10)[-1])
    first.seek(MessageId.latest)
    park(broker, topic, first)
    # The dispatcher cannot know that it was acknowledged before: all the same it is asked.
    first.acknowledge(ids[9])
    assert runs_of(broker, topic) == 2
    park(broker, topic, first)
    first.acknowledge_cumulative(ids[9])
    assert runs_of(broker, topic) == 2
    assert_quiet(first)


@pytest.mark.parametrize("grouping_ms", [0, 20])
def test_grouped_acknowledgments_wake(broker: Broker, client: Client, grouping_ms: int) -> None:
    topic = broker.topic()
    message_id = client.create_producer(topic).send(b"x")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, ack_grouping_time_ms=grouping_ms)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    park(broker, topic, consumer)
    consumer.acknowledge(message_id)
    wait_until(lambda: runs_of(broker, topic) == 2)
    park(broker, topic, consumer)


def test_what_asks_the_dispatcher_wakes_it(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "holds what s has acknowledged", initial_position=EARLIEST).close()
    message_id = client.create_producer(topic).send(b"x")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    park(broker, topic, consumer)
    assert not consumer.has_message_available()
    park(broker, topic, consumer)
    assert consumer.get_last_message_id() == message_id
    park(broker, topic, consumer)
    consumer.seek(MessageId.earliest)
    assert values(consumer, 1, acknowledge=True) == [b"x"]
    park(broker, topic, consumer)
    consumer.unsubscribe()
    assert client.subscribe(topic, "s", initial_position=EARLIEST).receive(WAIT_MS).data() == b"x"


def test_a_consumer_without_a_queue_waits_without_waking(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=0)
    park(broker, topic, consumer)
    future = consumer.receive_async()
    assert runs_of(broker, topic) == 0
    broker.client().create_producer(topic).send(b"x")
    assert future.result(WAIT_MS / 1000).data() == b"x"


def test_a_parked_exclusive_consumer_keeps_its_place(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    park(broker, topic, consumer)
    with pytest.raises(ConsumerBusy):
        broker.client().subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]


def test_a_parked_failover_consumer_stays_the_active_one(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    active = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="a")
    other = broker.client().subscribe(topic, "s", ConsumerType.Failover, consumer_name="b")
    producer = broker.client().create_producer(topic)
    for value in numbers(0, 5):
        park(broker, topic, active, other, producer)
        producer.send(value)
        assert values(active, 1, acknowledge=True) == [value]
    assert_quiet(other)


def test_parked_shared_consumers_get_each_message_once(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumers = [broker.client().subscribe(topic, "s", ConsumerType.Shared) for _ in range(3)]
    park(broker, topic, *consumers)
    producer = client.create_producer(topic)
    for value in numbers(0, 60):
        producer.send_async(value, None, partition_key="k")
    producer.flush()
    assert sorted(number for _, _, number in keyed_numbers(consumers, 60)) == list(range(60))


def test_parked_key_shared_consumers_divide_keys_again(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumers = [broker.client().subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(topic)
    for start in (0, 40, 80):
        for number in range(start, start + 40):
            producer.send_async(b"%d" % number, None, partition_key=f"k{number % 8}")
        producer.flush()
        got = keyed_numbers(consumers, 40)
        for key in {key for _, key, _ in got}:
            of_key = [(index, number) for index, of, number in got if of == key]
            assert len({index for index, _ in of_key}) == 1, "one consumer has a key"
            assert of_key == sorted(of_key)
        park(broker, topic, *consumers, producer)


def test_a_parked_listener_is_called(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    heard: list[bytes] = []

    def listen(consumer: Consumer, message: Any) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)

    consumer = client.subscribe(topic, "s", message_listener=listen)
    producer = broker.client().create_producer(topic)
    for count in range(3):
        park(broker, topic, consumer, producer)
        producer.send(b"%06d" % count)
        wait_until(lambda: len(heard) == count + 1)  # noqa: B023
    assert heard == numbers(0, 3)


def test_a_parked_reader_goes_on_behind_what_it_has_read(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, MessageId.earliest)
    late = client.create_reader(topic, MessageId.latest)
    view = client.create_table_view(topic)
    for number in range(3):
        producer.send(b"%d" % number, partition_key="k")
        assert reader.read_next(WAIT_MS).data() == late.read_next(WAIT_MS).data() == b"%d" % number
        wait_until(lambda: view.get("k") == b"%d" % number)  # noqa: B023
        park(broker, topic, reader, late, producer)
    wait_until(reader.is_connected, what="it is connected")


def test_a_consumer_of_several_topics_is_woken_by_one_of_them(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topics = [broker.topic(), broker.topic(), broker.topic(partitions=2)]
    consumer = client.subscribe(topics, "s", pattern_auto_discovery_period=1)
    pattern = client.subscribe(re.compile("persistent://public/default/t.*"), "p")
    partitions = [*topics[:2], f"{topics[2]}-partition-0", f"{topics[2]}-partition-1"]
    park(broker, partitions, consumer, pattern)
    consumer._core.partitions.discovery.look()  # type: ignore[union-attr]
    pattern._core.partitions.discovery.look()  # type: ignore[union-attr]
    assert not broker.cluster.addresses, "looking for topics wakes none"
    producer = broker.client().create_producer(topics[1])
    producer.send(b"x")
    assert values(consumer, 1, acknowledge=True) == values(pattern, 1, acknowledge=True) == [b"x"]
    assert {name for name in partitions if runs_of(broker, name)} == {topics[1]}
    producer.close()
    park(broker, partitions, consumer, pattern)
    producer = broker.client().create_producer(topics[2])
    for value in numbers(0, 10):
        producer.send(value)
    assert sorted(values(consumer, 10, acknowledge=True)) == numbers(0, 10)
    assert sorted(values(pattern, 10, acknowledge=True)) == numbers(0, 10)
    assert_quiet(consumer)


def test_messages_go_to_parked_partitions_in_turn(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    producer = client.create_producer(topic)
    park(broker, [f"{topic}-partition-{index}" for index in range(3)], producer)
    producer.growth.look()  # type: ignore[union-attr]
    assert not broker.cluster.addresses, "looking for new partitions wakes none"
    # A partition that has slept for long is not taken for one that does not answer.
    for partition in producer._partitions:
        partition.queue.state.closed_at_s -= 3600.0
    for value in numbers(0, 6):
        producer.send(value)
    assert [len(broker.stored(f"{topic}-partition-{index}")) for index in range(3)] == [2, 2, 2]


def test_closing_while_parked_wakes_nobody(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    handles: list[Any] = [
        client.create_producer(topic),
        client.subscribe(topic, "s"),
        client.create_reader(topic, MessageId.earliest),
    ]
    park(broker, topic, *handles)
    for handle in handles:
        handle.close()
    client.close()
    assert runs_of(broker, topic) == 0
    other = broker.client()
    consumer = other.subscribe(topic, "s")
    other.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]


@pytest.mark.parametrize("consumer_type", ALL_TYPES)
def test_nobody_waits_for_a_consumer_that_was_closed_while_parked(
    make_broker: Callable[..., Broker], consumer_type: ConsumerType
) -> None:
    broker = make_broker(reattach_grace_seconds=300)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", consumer_type)
    park(broker, topic, consumer)
    consumer.close()
    client.create_producer(topic).send(b"1")
    kind = ConsumerType.Exclusive if consumer_type != ConsumerType.Exclusive else ConsumerType.Shared
    assert values(broker.client().subscribe(topic, "s", kind), 1) == [b"1"]


def test_nobody_waits_for_one_that_closes_as_its_dispatcher_wakes(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(reattach_grace_seconds=300)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s")
    park(broker, topic, consumer)
    # Its process is slow to come.
    monkeypatch.setattr(ActorLink, "wake", lambda _link: None)
    other = broker.client()
    opened: list[Consumer] = []
    waiting = threading.Thread(target=lambda: opened.append(other.subscribe(topic, "s")), daemon=True)
    waiting.start()
    wait_until(lambda: runs_of(broker, topic) == 2, what="the dispatcher")
    consumer.close()
    waiting.join(WAIT_MS / 1000)
    assert opened


@pytest.mark.parametrize("partitions", [0, 2])
def test_one_that_stands_by_is_active_when_the_active_one_is_closed_while_both_are_parked(
    broker: Broker, client: Client, partitions: int
) -> None:
    topic = broker.topic(partitions)
    topics = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
    watches = {name: Watch() for name in "ab"}
    consumers = {
        name: broker.client().subscribe(
            topic, "s", ConsumerType.Failover, consumer_name=name, consumer_event_listener=watch
        )
        for name, watch in watches.items()
    }
    indexes = range(partitions) if partitions else [-1]
    wait_until(lambda: active_of(watches, indexes[-1]) == [["a", "b"][partitions // 2]])
    park(broker, topics, *consumers.values())
    consumers["a"].close()
    del watches["a"]
    wait_until(lambda: all(active_of(watches, index) == ["b"] for index in indexes), what="a new active one")
    park(broker, topics, consumers["b"])
    consumers["b"].close()
    assert not any(runs_of(broker, each) for each in topics), "nobody is left to be elected"


def test_closing_wakes_for_what_is_unsent(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumer = client.subscribe(topic, "s", ack_grouping_time_ms=60_000)
    park(broker, topic, producer, consumer)
    producer.send_async(b"x", None)
    producer.close()
    consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.close()
    again = client.subscribe(topic, "s")
    assert not again.has_message_available()


def test_what_is_shut_down_while_parked_ends(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    park(broker, topic, consumer, producer)
    client.shutdown()
    for call in (consumer.receive, lambda: producer.send(b"x")):
        with pytest.raises(PulsarException):
            call()
    assert not consumer.is_connected()
    assert runs_of(broker, topic) == 0


def test_a_lost_signal_is_made_up_for(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_poll, "PAUSE_S", 0.05)
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    park(broker, topic, consumer)
    broker.cluster.control.answers_to_lose = 3
    broker.client().create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]


def test_one_call_waits_for_all_parked_consumers(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [broker.topic() for _ in range(5)]
    consumers = [client.subscribe(topic, "s") for topic in topics]
    await_wake = broker.cluster.await_wake
    waiting: list[list[str]] = []

    def noted(client_id: str, parked: dict[str, Any], timeout_s: float) -> list[str]:
        waiting.append(list(parked))
        try:
            return await_wake(client_id, parked, timeout_s)
        finally:
            waiting.remove(list(parked))

    monkeypatch.setattr(broker.cluster, "await_wake", noted)
    park(broker, topics, *consumers)
    wait_until(lambda: [len(addresses) for addresses in waiting] == [5], what="one call for five")
    publisher = broker.client()
    for topic, consumer in zip(topics, consumers, strict=True):
        publisher.create_producer(topic).send(b"x")
        assert values(consumer, 1) == [b"x"]
    wait_until(lambda: not waiting, what="no call for none")


def test_unpickled_handles_are_parked(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    made = client.create_producer(topic), client.subscribe(topic, "s", ConsumerType.Shared)
    producer, consumer = (pickled(broker.client(), handle, monkeypatch) for handle in made)
    assert isinstance(consumer, Consumer)
    for handle in (*made, producer, consumer):
        wait_until(handle.is_connected, what="it is connected")  # type: ignore[attr-defined]
    made[1].close()
    park(broker, topic, made[0], producer, consumer)
    made[0].send(b"x")
    assert values(consumer, 1, acknowledge=True) == [b"x"]
    park(broker, topic, made[0], producer, consumer)
    producer.send(b"y")  # type: ignore[attr-defined]
    assert values(consumer, 1) == [b"y"]


@on_a_loop
async def test_asyncio_handles_are_parked(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.asyncio_client()
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic)
    reader = await client.create_reader(topic, MessageId.earliest)

    async def parked() -> None:
        await asyncio.to_thread(park, broker, topic, consumer, producer, reader)
        await until(consumer.is_connected)

    for number in range(3):
        await producer.send(b"%d" % number)
        message = await consumer.receive()
        assert message.data() == (await reader.read_next()).data() == b"%d" % number
        await consumer.acknowledge(message)
        await parked()
    assert not await consumer.has_message_available()
    await parked()
    await consumer.acknowledge_cumulative(message)
    await until(lambda: runs_of(broker, topic) >= 2)
    await parked()
    await asyncio.to_thread(lambda: broker.client().create_producer(topic).send(b"x"))
    assert (await consumer.receive()).data() == b"x"
    await consumer.acknowledge_cumulative(message)
    for handle in (consumer, producer, reader, client):
        await handle.close()
