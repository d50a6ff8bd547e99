"""Listeners of activity, and pausing, in the asyncio client, over every carrier."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from pulsar_ray import asyncio as pulsar
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.errors import Timeout
from pulsar_ray.model.enums import ConsumerType
from tests.conformance.broker import EARLIEST, QUIET_MS, Broker, numbers
from tests.conformance.event_loop import on_a_loop, receive, turns, until, values


class Told(ConsumerEventListener):
    """Keeps what it was told, on the loop."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any, int]] = []

    def became_active(self, consumer: Any, partition_id: int) -> Any:
        asyncio.get_running_loop()
        self.heard.append(("active", consumer, partition_id))

    def became_inactive(self, consumer: Any, partition_id: int) -> None:
        self.heard.append(("inactive", consumer, partition_id))


class ToldSlowly(Told):
    """Its calls are coroutines, the first of which raises."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()

    async def became_active(self, consumer: Any, partition_id: int) -> None:
        self.heard.append(("begun", consumer, partition_id))
        await self.may_go_on.wait()
        self.heard.append(("active", consumer, partition_id))
        raise RuntimeError("as listeners do")


def failover(client: pulsar.Client, topic: str, name: str, listener: ConsumerEventListener) -> Any:
    return client.subscribe(
        topic, "s", ConsumerType.Failover, consumer_name=name, consumer_event_listener=listener
    )


@on_a_loop
async def test_listeners_are_told_on_the_loop_who_is_active(broker: Broker) -> None:
    topic = broker.topic(2)
    async with broker.asyncio_client() as one, broker.asyncio_client() as other:
        first, second = Told(), Told()
        a = await failover(one, topic, "a", first)
        await until(lambda: len(first.heard) == 2)
        assert sorted(first.heard, key=lambda told: told[2]) == [("active", a, 0), ("active", a, 1)]
        b = await failover(other, topic, "b", second)
        await until(lambda: ("inactive", a, 1) in first.heard and ("active", b, 1) in second.heard)
        assert ("inactive", b, 0) in second.heard
        await a.close()
        await until(lambda: ("active", b, 0) in second.heard)
        assert len(first.heard) == 3
        producer = await one.create_producer(topic, batching_enabled=False)
        for value in numbers(0, 4):
            await producer.send(value)
        assert sorted(await values(b, 4)) == numbers(0, 4)


@on_a_loop
async def test_a_listener_of_coroutines_is_awaited_one_call_after_the_other(broker: Broker) -> None:
    topic = broker.topic(2)
    async with broker.asyncio_client() as client:
        told = ToldSlowly()
        consumer = await failover(client, topic, "a", told)
        await until(lambda: len(told.heard) == 1)
        await turns(10)
        assert [what for what, _, _ in told.heard] == ["begun"]
        told.may_go_on.set()
        await until(lambda: len(told.heard) == 4)
        assert [what for what, _, _ in told.heard] == ["begun", "active"] * 2
        await consumer.close()


@on_a_loop
async def test_what_starts_paused_asks_for_nothing_before_it_is_resumed(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client, broker.asyncio_client() as elsewhere:
        paused = await client.subscribe(topic, "s", ConsumerType.Shared, start_paused=True)
        producer = await client.create_producer(topic, batching_enabled=False)
        other = await elsewhere.subscribe(topic, "s", ConsumerType.Shared)
        for value in numbers(0, 10):
            await producer.send(value)
        got = await receive(other, 10)
        assert [message.data() for message in got] == numbers(0, 10)
        await other.acknowledge(got)
        with pytest.raises(Timeout):
            await paused.receive(QUIET_MS)
        await other.close()
        waiting = asyncio.create_task(paused.receive())
        await turns(5)
        paused.resume()
        await producer.send(b"now")
        assert (await waiting).data() == b"now"


@on_a_loop
async def test_pausing_stops_what_is_not_on_its_way(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        for value in numbers(0, 30):
            await producer.send(value)
        consumer = await client.subscribe(
            topic, "s", initial_position=EARLIEST, receiver_queue_size=4, start_paused=True
        )
        consumer.resume()
        got = await values(consumer, 1)
        consumer.pause()
        with suppress(Timeout):
            while True:
                got.append((await consumer.receive(QUIET_MS)).data())
        assert len(got) < 30
        consumer.resume()
        got += await values(consumer, 30 - len(got))
        assert got == numbers(0, 30)
        with pytest.raises(ValueError, match="start_paused"):
            await client.subscribe(topic, "t", start_paused="yes")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="consumer_event_listener"):
            await client.subscribe(topic, "t", consumer_event_listener=print)  # type: ignore[arg-type]
