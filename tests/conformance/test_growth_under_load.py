"""Partitions that are added again and again while everybody publishes and receives, over every carrier."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import Result, Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import QUIET_MS, WAIT_MS, Broker
from tests.conformance.event_loop import on_a_loop

SOON: dict[str, Any] = {"auto_update_partitions_interval_seconds": 1}
GROWTH = (3, 7)
BETWEEN = 30
KEYS = 7
DEADLINE_S = 60.0


class Sent:
    """Running numbers of one sender, some of which came behind the last growth."""

    def __init__(self, name: str, keyed: bool) -> None:
        self.name = name
        self.keyed = keyed
        self.count = 0
        self.confirmed = 0
        self.settled_from = 0
        self.failures: list[str] = []

    def key(self) -> str | None:
        return f"{self.name}-{self.count % KEYS}" if self.keyed else None

    def value(self) -> bytes:
        return f"{self.name} {self.count}".encode()

    def answered(self, result: Any, _: Any) -> None:
        if result != Result.Ok:
            self.failures.append(str(result))
        self.confirmed += 1


def send_all_along(producer: Producer, sent: Sent, stop: threading.Event, *, waits: bool) -> None:
    while not stop.is_set():
        if waits:
            producer.send(sent.value(), partition_key=sent.key())
            sent.confirmed += 1
        else:
            producer.send_async(sent.value(), sent.answered, partition_key=sent.key())
        sent.count += 1
    producer.flush()


def receive_all_along(consumer: Consumer, got: list[Message], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            message = consumer.receive(QUIET_MS)
        except Timeout:
            continue
        got.append(message)
        consumer.acknowledge(message)


def check(got: Iterable[Message], sent: Iterable[Sent], *, ordered: bool) -> None:
    """Each message came once; those of a key in order in each partition, and behind the growth altogether."""
    wanted = {f"{each.name} {number}": each for each in sent for number in range(each.count)}
    came = Counter(message.data().decode() for message in got)
    assert not wanted.keys() - came.keys(), "confirmed, and lost"
    assert max(came.values()) == 1, [value for value, count in came.items() if count > 1]
    if not ordered:
        return
    last: dict[tuple[str, int], int] = {}
    settled: dict[str, int] = {}
    for message in got:
        value = message.data().decode()
        key, number = message.partition_key(), int(value.split()[1])
        if not key:
            continue
        place = (key, message.message_id().partition())
        assert last.get(place, -1) < number
        last[place] = number
        if number >= wanted[value].settled_from:
            assert settled.get(key, -1) < number
            settled[key] = number


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    # Carriers are given up and replaced here, under all the load there is. A session that ends meanwhile
    # gives what it held to others, and what was received and acknowledged lately may come twice.
    return make_broker(reattach_grace_seconds=30)


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.timeout(400)
def test_nothing_is_lost_doubled_or_out_of_order(broker: Broker, stop: threading.Event) -> None:
    topic, topics = broker.topic(1), broker.admin().topics
    client = broker.client()
    exclusive = client.subscribe(topic, "exclusive", **SOON)
    shared = [broker.client().subscribe(topic, "shared", ConsumerType.Shared, **SOON) for _ in range(2)]
    keyed = [broker.client().subscribe(topic, "keyed", ConsumerType.KeyShared, **SOON) for _ in range(2)]
    consumers = [exclusive, *shared, *keyed]
    got: list[list[Message]] = [[] for _ in consumers]
    sent = [Sent("k", True), Sent("kb", True), Sent("n", False), Sent("nb", False), Sent("w", True)]
    producers = [
        broker.client().create_producer(
            topic,
            block_if_queue_full=True,
            max_pending_messages=50,
            batching_enabled="b" in each.name,
            **SOON,
        )
        for each in sent
    ]
    stop_receiving = threading.Event()
    receiving = [
        threading.Thread(target=receive_all_along, args=(consumer, into, stop_receiving))
        for consumer, into in zip(consumers, got, strict=True)
    ]
    sending = [
        threading.Thread(
            target=send_all_along, args=(producer, each, stop), kwargs={"waits": each.name == "w"}
        )
        for producer, each in zip(producers, sent, strict=True)
    ]
    for thread in (*receiving, *sending):
        thread.start()
    try:
        for count in GROWTH:
            topics.update_partitioned_topic(topic, count)
            for producer in producers:
                wait_until(
                    functools.partial(uses, producer, count), DEADLINE_S, f"{count} partitions for producers"
                )
            for each in sent:
                each.settled_from = each.count + 1
                wait_until(functools.partial(has_sent, each, each.count + BETWEEN), DEADLINE_S, "sends")
        stop.set()
        for thread in sending:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        total = sum(each.count for each in sent)
        for group in ([0], [1, 2], [3, 4]):
            wait_until(
                lambda group=group: sum(len(got[each]) for each in group) >= total,  # type: ignore[misc]
                DEADLINE_S,
                f"all of {total} at {group}",
            )
    finally:
        stop.set()
        stop_receiving.set()
        for thread in receiving:
            thread.join(WAIT_MS / 1000)
    assert [each.failures for each in sent] == [[] for _ in sent]
    wait_until(lambda: [s.confirmed for s in sent] == [s.count for s in sent], what="all callbacks")
    check(got[0], sent, ordered=True)
    check(got[1] + got[2], sent, ordered=False)
    check(got[3] + got[4], sent, ordered=False)
    for one in got[3:]:
        check_order_in_partitions(one)
    assert not client.subscribe(topic, "shared", ConsumerType.Shared).has_message_available()


def check_order_in_partitions(got: Iterable[Message]) -> None:
    last: dict[tuple[str, int], int] = {}
    for message in got:
        if key := message.partition_key():
            place, number = (key, message.message_id().partition()), int(message.data().split()[1])
            assert last.get(place, -1) < number
            last[place] = number


def uses(producer: Producer, partitions: int) -> bool:
    return producer.partition_count == partitions


def has_sent(sent: Sent, count: int) -> bool:
    return sent.count >= count


@pytest.mark.timeout(400)
@on_a_loop
async def test_nothing_is_lost_doubled_or_out_of_order_with_asyncio(broker: Broker) -> None:
    topic, topics = broker.topic(1), broker.admin().topics
    sent = [Sent("k", True), Sent("kb", True), Sent("n", False), Sent("nb", False)]
    got: list[Message] = []
    is_stopped = False
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s", **SOON)

        async def send(each: Sent) -> None:
            producer = await client.create_producer(topic, batching_enabled="b" in each.name, **SOON)
            pending: list[asyncio.Future[Any]] = []
            for number in itertools.count():
                if is_stopped:
                    break
                sending = asyncio.ensure_future(producer.send(each.value(), partition_key=each.key()))
                each.count = number + 1
                pending.append(sending)
                if len(pending) == 20:
                    await asyncio.gather(*pending)
                    pending.clear()
            await asyncio.gather(*pending)

        async def receive() -> None:
            while True:
                got.append(await consumer.receive())
                await consumer.acknowledge(got[-1])

        receiving = asyncio.create_task(receive())
        sending = [asyncio.create_task(send(each)) for each in sent]
        for count in GROWTH:
            await asyncio.to_thread(topics.update_partitioned_topic, topic, count)
            since = len(got)
            # Once messages come from the newest partition it is in use.
            while not any(each.message_id().partition() == count - 1 for each in got[since:]):
                await asyncio.sleep(0.02)
        is_stopped = True
        await asyncio.gather(*sending)
        while len(got) < sum(each.count for each in sent):
            await asyncio.sleep(0.02)
        receiving.cancel()
    for each in sent:
        each.settled_from = each.count
    check(got, sent, ordered=True)
