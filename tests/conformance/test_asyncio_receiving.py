"""Receiving and acknowledging in tasks of an event loop, over every carrier."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.options.policies import ConsumerBatchReceivePolicy
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    Timeout,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import EARLIEST, Broker, numbers
from tests.conformance.event_loop import on_a_loop, receive, turns, until, values

QUIET_S = 0.15


@on_a_loop
async def test_waiting_tasks_get_messages_in_the_order_of_their_calls(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s")
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(5)]
        await turns(10)
        producer = await client.create_producer(topic, batching_enabled=False)
        await asyncio.gather(*(producer.send(value) for value in numbers(0, 8)))
        assert [(await task).data() for task in waiting] == numbers(0, 5)
        assert await values(consumer, 3) == numbers(5, 8)


@on_a_loop
async def test_receiving_can_time_out_in_both_ways(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s")
        with pytest.raises(Timeout):
            await consumer.receive(10)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.receive(), 0.01)
        with pytest.raises(Timeout):
            await consumer.receive_arrow(timeout_millis=10)
        assert list(await consumer.batch_receive()) == []
        with pytest.raises(ValueError, match="timeout_millis"):
            await consumer.receive("soon")  # type: ignore[arg-type]
        producer = await client.create_producer(topic, batching_enabled=False)
        await producer.send(b"x")
        assert await values(consumer, 1) == [b"x"]


@on_a_loop
async def test_cancelled_receives_lose_no_message(broker: Broker) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed of the cancellations: {seed}")
    chance = random.Random(seed)
    topic, count = broker.topic(), 300
    got: list[bytes] = []
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s", receiver_queue_size=20)
        producer = await client.create_producer(topic, batching_enabled=False)

        async def take() -> None:
            got.append((await consumer.receive()).data())

        async def take_many() -> None:
            got.extend([message.data() for message in await consumer.batch_receive()])

        async def publish() -> None:
            for value in numbers(0, count):
                await producer.send(value)

        publishing = asyncio.create_task(publish())
        tasks: list[asyncio.Task[None]] = []
        while not publishing.done():
            tasks += [asyncio.create_task(chance.choice((take, take, take_many))()) for _ in range(3)]
            await turns(chance.randrange(30))
            if chance.random() < 0.5:
                await asyncio.sleep(0.001)
            for task in chance.sample(tasks, min(3, len(tasks))):
                task.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        got += await values(consumer, count - len(got))
        await publishing
    assert sorted(got) == numbers(0, count)


@on_a_loop
async def test_a_message_handed_to_a_task_that_is_cancelled_comes_to_the_next(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        consumer = await client.subscribe(topic, "s")
        for number in range(20):
            receiving = asyncio.create_task(consumer.receive())
            # Cancelled in the same turn in which it got the message, and in some before.
            taken = asyncio.create_task(producer.send(b"%06d" % number))
            while not taken.done():
                await asyncio.sleep(0)
            await turns(number)
            if receiving.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                assert await values(consumer, 1) == [b"%06d" % number]
            else:
                assert receiving.result().data() == b"%06d" % number


@on_a_loop
async def test_tasks_that_receive_for_ever_end_when_they_are_cancelled(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
        producer = await client.create_producer(topic, batching_enabled=False)
        got: list[bytes] = []

        async def by_one() -> None:
            got.append((await consumer.receive()).data())

        async def by_batch() -> None:
            got.extend(message.data() for message in await consumer.batch_receive())

        async def by_table() -> None:
            got.extend((await consumer.receive_arrow()).column("value").to_pylist())

        async def for_ever(receive_some: Callable[[], Coroutine[Any, Any, None]]) -> None:
            while True:
                await receive_some()

        sent = 0
        for receive_some in (by_one, by_batch, by_table):
            for later in range(6):
                receiving = asyncio.create_task(for_ever(receive_some))
                await turns(5)
                # Cancelled so many turns after the message arrived.
                arrived = asyncio.Event()
                core = consumer._open_already().core
                core.add_listener(arrived.set)
                sending = asyncio.create_task(producer.send(b"%06d" % sent))
                sent += 1
                while not arrived.is_set():
                    await asyncio.sleep(0)
                await turns(later)
                receiving.cancel()
                core.remove_listener(arrived.set)
                await asyncio.wait({receiving}, timeout=10)
                assert receiving.cancelled(), (receive_some.__name__, later)
                await sending
        got += await values(consumer, sent - len(got))
    assert sorted(got) == numbers(0, sent)


@on_a_loop
async def test_batches_and_tables_are_received(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(
            topic, "s", batch_receive_policy=ConsumerBatchReceivePolicy(10, -1, -1), ack_receipt_enabled=True
        )
        filling = asyncio.create_task(consumer.batch_receive())
        producer = await client.create_producer(topic)
        await asyncio.gather(*(producer.send(value) for value in numbers(0, 6)))
        await turns(100)
        assert not filling.done()
        filling.cancel()
        await asyncio.gather(*(producer.send(value) for value in numbers(6, 30)))
        batch = await consumer.batch_receive()
        assert [message.data() for message in batch] == numbers(0, 10)
        await consumer.acknowledge(batch)
        table = await consumer.receive_arrow(20)
        assert table.column("value").to_pylist() == numbers(10, 10 + table.num_rows)
        await consumer.acknowledge_arrow(table)
        rest = await receive(consumer, 20 - table.num_rows)
        await consumer.acknowledge(rest)
        assert broker.unacked(topic, "s") == [0]
        assert isinstance(table, pa.Table)


@on_a_loop
async def test_a_queue_of_zero_holds_nothing_back(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client, broker.asyncio_client() as other:
        none = await client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=0)
        some = await other.subscribe(topic, "s", ConsumerType.Shared)
        producer = await client.create_producer(topic, batching_enabled=False)
        await asyncio.gather(*(producer.send(value) for value in numbers(0, 5)))
        assert sorted(await values(some, 5)) == numbers(0, 5)
        await some.close()
        assert sorted(await values(none, 5)) == numbers(0, 5)
        with pytest.raises(InvalidConfiguration):
            await none.receive(10)


@on_a_loop
async def test_acknowledged_messages_do_not_come_again_and_others_do(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        consumer = await client.subscribe(topic, "s")
        await asyncio.gather(*(producer.send(value) for value in numbers(0, 10)))
        messages = await receive(consumer, 10)
        await consumer.acknowledge_cumulative(messages[2])
        await consumer.acknowledge(messages[5])
        await consumer.acknowledge(messages[7].message_id())
        await consumer.close()
        again = await client.subscribe(topic, "s")
        left = [b"%06d" % number for number in (3, 4, 6, 8, 9)]
        assert await values(again, 5, acknowledge=True) == left
        await again.close()
        shared = await client.subscribe(topic, "s", ConsumerType.Shared)
        with pytest.raises(CumulativeAcknowledgementNotAllowedError):
            await shared.acknowledge_cumulative(messages[9])
        with pytest.raises(Timeout):
            await shared.receive(int(QUIET_S * 1000))


@on_a_loop
async def test_receipts_make_acknowledgments_durable_before_they_return(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", ack_receipt_enabled=True, batch_index_ack_enabled=True)
        await asyncio.gather(*(producer.send(value) for value in numbers(0, 20)))
        messages = await receive(consumer, 20)
        await asyncio.gather(*(consumer.acknowledge(message) for message in messages[:18]))
        await consumer.acknowledge_cumulative(messages[18])
        client.shutdown()
        broker.cluster.kill(f"{topic} -> s")
    async with broker.asyncio_client() as client:
        again = await client.subscribe(topic, "s", batch_index_ack_enabled=True)
        assert (await values(again, 1))[-1:] == [b"000019"] or broker.unacked(topic, "s") == [20]


@on_a_loop
async def test_nacked_and_given_back_messages_come_again(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        consumer = await client.subscribe(
            topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=50
        )
        await asyncio.gather(*(producer.send(value) for value in numbers(0, 4)))
        first: list[Message] = await receive(consumer, 4)
        await consumer.negative_acknowledge(first[1])
        await consumer.negative_acknowledge(first[3].message_id())
        again = await receive(consumer, 2)
        assert sorted(m.data() for m in again) == [b"000001", b"000003"]
        assert {m.redelivery_count() for m in again} == {1}
        consumer.redeliver_unacknowledged_messages()
        assert sorted(await values(consumer, 4, acknowledge=True)) == numbers(0, 4)


@on_a_loop
async def test_seeking_goes_to_ids_times_and_ends(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        ids = await asyncio.gather(*(producer.send(value) for value in numbers(0, 10)))
        messages = await receive(consumer, 10)
        await consumer.seek(ids[3])
        assert await values(consumer, 6) == numbers(4, 10)
        await consumer.seek(MessageId.earliest)
        assert await values(consumer, 10) == numbers(0, 10)
        await consumer.seek(messages[0].publish_timestamp())
        assert await values(consumer, 10) == numbers(0, 10)
        await consumer.seek(MessageId.latest)
        await producer.send(b"new")
        assert await values(consumer, 1) == [b"new"]
        with pytest.raises(ValueError, match="seek takes"):
            await consumer.seek(1.5)  # type: ignore[arg-type]


@on_a_loop
async def test_a_reader_reads_on_and_knows_whether_there_is_more(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        ids = await asyncio.gather(*(producer.send(value) for value in numbers(0, 5)))
        reader = await client.create_reader(topic, ids[1])
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).data())
        assert found == numbers(2, 5)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read_next(), 0.01)
        with pytest.raises(Timeout):
            await reader.read_next(10)
        await producer.send(b"new")
        assert await reader.has_message_available()
        assert (await reader.read_next()).data() == b"new"
        await reader.seek(MessageId.earliest)
        assert (await reader.read_next()).data() == b"000000"
        assert reader.topic() == topic
        await until(reader.is_connected)
        await reader.close()
        with pytest.raises(AlreadyClosed):
            await reader.read_next()
