"""Publishing from tasks of an event loop, over every carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.errors import (
    AlreadyClosed,
    MessageTooBig,
    ProducerQueueIsFull,
    PulsarException,
    Result,
    Timeout,
)
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import EARLIEST, Broker, numbers
from tests.conformance.event_loop import on_a_loop, receive, turns, until, values


@on_a_loop
async def test_a_send_returns_the_id_with_which_its_message_is_received(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        consumer = await client.subscribe(topic, "s")
        assert (producer.topic(), producer.last_sequence_id()) == (topic, -1)
        ids = [await producer.send(value) for value in numbers(0, 20)]
        messages = await receive(consumer, 20)
        assert [(m.data(), m.message_id()) for m in messages] == list(zip(numbers(0, 20), ids, strict=True))
        assert ids == sorted(set(ids))
        assert producer.last_sequence_id() == 19
    assert broker.stored(topic) == numbers(0, 20)


@on_a_loop
async def test_concurrent_sends_of_one_batch_share_its_entry(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        ids = await asyncio.gather(*(producer.send(value) for value in numbers(0, 10)))
        assert len({(i.ledger_id(), i.entry_id()) for i in ids}) == 1
        assert [i.batch_index() for i in ids] == list(range(10))
        assert producer.last_sequence_id() == 9
    assert broker.stored(topic) == numbers(0, 10)


@on_a_loop
async def test_sends_wait_for_their_batch_and_have_returned_when_flush_does(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_max_publish_delay_ms=60_000)
        sends = [asyncio.create_task(producer.send(value)) for value in numbers(0, 5)]
        await turns(100)
        assert not any(send.done() for send in sends)
        await producer.flush()
        assert all(send.done() for send in sends)
        await producer.flush()
    assert broker.stored(topic) == numbers(0, 5)


@on_a_loop
async def test_unbatched_sends_of_many_tasks_are_written_together_in_order(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False, max_pending_messages=0)

        async def sender(number: int) -> None:
            for turn in range(20):
                await producer.send(b"%03d-%03d" % (number, turn))

        await asyncio.gather(*(sender(number) for number in range(50)))
    stored = [value for value in broker.stored(topic) if value is not None]
    assert len(stored) == 1000
    for number in range(50):
        own = [value for value in stored if value.startswith(b"%03d-" % number)]
        assert own == [b"%03d-%03d" % (number, turn) for turn in range(20)]
    assert len(broker.stored_blocks(topic)) < 500


@on_a_loop
async def test_a_full_queue_is_waited_for_in_order_or_refuses(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        refusing = await client.create_producer(topic, batching_enabled=False, max_pending_messages=10)
        outcomes = await asyncio.gather(
            *(refusing.send(value) for value in numbers(0, 15)), return_exceptions=True
        )
        assert [isinstance(outcome, MessageId) for outcome in outcomes] == [True] * 10 + [False] * 5
        assert {type(outcome) for outcome in outcomes[10:]} == {ProducerQueueIsFull}
        for batching in (False, True):
            waiting = await client.create_producer(
                topic, batching_enabled=batching, max_pending_messages=10, block_if_queue_full=True
            )
            await asyncio.gather(*(waiting.send(value) for value in numbers(100, 300)))
    assert broker.stored(topic) == numbers(0, 10) + 2 * numbers(100, 300)


@on_a_loop
async def test_cancelled_senders_leave_their_place_to_others(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(
            topic, batching_enabled=False, max_pending_messages=2, block_if_queue_full=True
        )
        broker.cluster.kill(topic, keep_down=True)
        sends = [asyncio.create_task(producer.send(value)) for value in numbers(0, 8)]
        await turns(10)
        for number in (0, 3, 4, 7):
            sends[number].cancel()
        await turns(10)
        broker.cluster.allow(topic)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        cancelled = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, MessageId)]
        assert cancelled == [0, 3, 4, 7]
    # The first one had begun.
    assert broker.stored(topic) == [b"%06d" % number for number in (0, 1, 2, 5, 6)]


@on_a_loop
async def test_a_send_without_a_receipt_times_out_and_later_ones_work(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, send_timeout_millis=500, batching_enabled=False)
        broker.cluster.kill(topic, keep_down=True)
        with pytest.raises(Timeout) as raised:
            await producer.send(b"lost")
        assert raised.value.error() == Result.Timeout
        broker.cluster.allow(topic)
        await until(producer.is_connected)
        await producer.send(b"later")
    assert broker.stored(topic)[-1] == b"later"


@on_a_loop
async def test_what_cannot_be_sent_is_refused_as_in_the_synchronous_client(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        with pytest.raises(TypeError):
            await producer.send("text")
        wrong: list[dict[str, Any]] = [
            {"properties": {"a": 1}},
            {"partition_key": 1},
            {"sequence_id": -1},
            {"event_timestamp": "now"},
        ]
        for arguments in wrong:
            with pytest.raises(ValueError, match=next(iter(arguments))):
                await producer.send(b"x", **arguments)
        with pytest.raises(MessageTooBig):
            await producer.send(bytes(10 << 20))
        with pytest.raises(ValueError, match="batching_max_messages"):
            await client.create_producer(topic, batching_max_messages=0)
        await producer.close()
        with pytest.raises(AlreadyClosed):
            await producer.send(b"x")
        with pytest.raises(PulsarException):
            await producer.flush()
    assert broker.stored(topic) == []


@on_a_loop
async def test_fields_tombstones_and_keys_arrive_from_every_partition(broker: Broker) -> None:
    topic = broker.topic(partitions=3)
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        sent = [
            producer.send(
                None if number == 7 else b"%d" % number,
                {"n": str(number)},
                f"key{number % 5}",
                f"order{number}",
                event_timestamp=number + 1,
            )
            for number in range(30)
        ]
        await asyncio.gather(*sent)
        got = {int(m.properties()["n"]): m for m in await receive(consumer, 30)}
        assert sorted(got) == list(range(30))
        assert got[7].has_null_value()
        assert [got[n].partition_key() for n in range(5)] == [f"key{n}" for n in range(5)]
        assert [got[n].ordering_key() for n in range(5)] == [f"order{n}" for n in range(5)]
        assert [got[n].event_timestamp() for n in range(5)] == [n + 1 for n in range(5)]
        for number in range(5):
            partitions = {got[n].message_id().partition() for n in range(number, 30, 5)}
            assert len(partitions) == 1
        assert await client.get_topic_partitions(topic) == [f"{topic}-partition-{i}" for i in range(3)]


@on_a_loop
async def test_lists_and_tables_are_published_at_once(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s")
        (last,) = await producer.send_many(numbers(0, 100))
        (after,) = await producer.send_arrow(pa.table({"value": numbers(100, 200)}))
        assert last < after
        assert await values(consumer, 200) == numbers(0, 200)
        assert await consumer.get_last_message_id() == after
        with pytest.raises(ValueError, match="partition_keys"):
            await producer.send_many([b"a", b"b"], partition_keys=["k"])


@on_a_loop
async def test_the_loop_goes_on_while_an_actor_is_slow_to_attach(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    topic = broker.topic()
    broker.cluster.partition(topic).freeze()
    async with broker.asyncio_client() as client:
        creating = asyncio.create_task(client.create_producer(topic))
        await turns(1000)
        assert not creating.done()
        broker.cluster.partition(topic).thaw()
        producer = await creating
        await producer.send(b"x")
    assert broker.stored(topic) == [b"x"]
