"""Losses, loops and ends of the asyncio client, over every carrier."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from ray import cloudpickle

from pulsar_ray import asyncio as pulsar
from pulsar_ray.asyncio import client as client_module
from pulsar_ray.errors import (
    AlreadyClosed,
    ConsumerBusy,
    NotAllowedError,
    NotConnected,
    PulsarException,
    Timeout,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.transport import endpoint
from tests.conformance.broker import EARLIEST, Broker, numbers
from tests.conformance.event_loop import on_a_loop, turns, until, values

ray_dumps: Any = cloudpickle.dumps
"""As Ray pickles arguments: methods of classes go along by value, unlike with the library's own pickle."""

FORGETFUL = pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
"""asyncio's own hint to programs that end their loop without closing what lives on it."""


def dispatcher(topic: str) -> str:
    return f"{topic} -> s"


@on_a_loop
async def test_cut_connections_lose_nothing_repeat_nothing_and_keep_the_order(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, max_pending_messages=0)
        consumer = await client.subscribe(topic, "s", receiver_queue_size=50)
        sends: list[asyncio.Task[MessageId]] = []
        got: list[bytes] = []
        for turn in range(6):
            sends += [
                asyncio.create_task(producer.send(value)) for value in numbers(turn * 100, turn * 100 + 100)
            ]
            await turns(3)
            broker.cluster.cut_lanes(topic)
            got += await values(consumer, 50, acknowledge=True)
            broker.cluster.cut_lanes(dispatcher(topic))
        ids = await asyncio.gather(*sends)
        assert ids == sorted(set(ids))
        got += await values(consumer, 300)
        assert got == numbers(0, 600)
    assert broker.stored(topic) == numbers(0, 600)


@on_a_loop
async def test_killed_actors_come_back_without_a_loss(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        consumer = await client.subscribe(topic, "s", ack_receipt_enabled=True)
        await producer.send(b"000000")
        (message,) = [await consumer.receive()]
        broker.cluster.kill(topic)
        broker.cluster.kill(dispatcher(topic))
        sends = [asyncio.create_task(producer.send(value)) for value in numbers(1, 20)]
        await consumer.acknowledge(message)
        assert await values(consumer, 19) == numbers(1, 20)
        await asyncio.gather(*sends)
    assert broker.stored(topic) == numbers(0, 20)


@on_a_loop
async def test_a_program_that_blocks_its_loop_keeps_its_session(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PING_INTERVAL_S", 0.2)
    monkeypatch.setattr(endpoint, "SILENCE_S", 0.5)
    broker = make_broker(session_lease_seconds=1.0)
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
        await producer.send(b"held")
        message = await consumer.receive()
        other = broker.client().subscribe(topic, "s", ConsumerType.Shared)
        with pytest.raises(Timeout):
            other.receive(2500)  # stops the loop for longer than the lease
        await consumer.acknowledge(message)
        await producer.send(b"next")
        await consumer.close()
        assert other.receive(20_000).data() == b"next"


def test_two_loops_of_one_process_do_not_disturb_each_other(broker: Broker) -> None:
    topic = broker.topic()
    failures: list[BaseException] = []

    @on_a_loop
    async def program(name: bytes) -> None:
        async with broker.asyncio_client() as client:
            producer = await client.create_producer(topic)
            consumer = await client.subscribe(topic, name.decode())
            await asyncio.gather(*(producer.send(name) for _ in range(100)))
            while (await consumer.receive()).data() != name:
                pass

    def run(name: bytes) -> None:
        try:
            program(name)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sorted(broker.stored(topic), key=str) == 100 * [b"a"] + 100 * [b"b"]


@FORGETFUL
def test_a_client_refuses_other_loops_and_the_time_after_its_own(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.asyncio_client()
    handles: list[Any] = []

    async def begin() -> None:
        handles.append(await client.create_producer(topic))
        handles.append(await client.subscribe(topic, "s"))
        with pytest.raises(NotAllowedError):
            await asyncio.to_thread(asyncio.run, handles[0].send(b"x"))

    asyncio.run(begin())
    producer, consumer = handles
    calls: list[Callable[[], Any]] = [
        lambda: producer.send(b"x"),
        consumer.receive,
        lambda: client.create_producer(topic),
    ]
    for call in calls:
        with pytest.raises(AlreadyClosed, match="loop"):
            asyncio.run(call())
    client.shutdown()
    gc.collect()  # asyncio's hints, here and not in another test


@FORGETFUL
@on_a_loop
async def test_the_session_of_a_closed_loop_ends(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "PING_INTERVAL_S", 0.1)
    broker = make_broker(session_lease_seconds=1.0)  # what ends it on the tunnel
    topic = broker.topic()
    forgetful = broker.asyncio_client()
    await asyncio.to_thread(asyncio.run, _subscribe(forgetful, topic))
    async with broker.asyncio_client() as client:
        while True:
            try:
                consumer = await client.subscribe(topic, "s")
            except ConsumerBusy:
                await asyncio.sleep(0.05)
            else:
                break
        await until(consumer.is_connected)
    forgetful.shutdown()
    gc.collect()


async def _subscribe(client: pulsar.Client, topic: str) -> None:
    await client.subscribe(topic, "s")


@on_a_loop
async def test_everything_refuses_after_its_close(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.asyncio_client()
    producer = await client.create_producer(topic, batching_max_publish_delay_ms=60_000)
    consumer = await client.subscribe(topic, "s")
    reader = await client.create_reader(topic, MessageId.earliest)
    pending = asyncio.create_task(producer.send(b"pending"))
    waiting = asyncio.create_task(reader.read_next())
    await turns(3)
    for closable in (producer, consumer):
        await until(closable.is_connected)
        await closable.close()
        assert not closable.is_connected()
        with pytest.raises(AlreadyClosed):
            await closable.close()
    assert isinstance(await pending, MessageId)
    assert (await waiting).data() == b"pending"
    waiting = asyncio.create_task(reader.read_next())
    await turns(3)
    await client.close()
    with pytest.raises(AlreadyClosed):
        await waiting
    refusing: list[Callable[[], Any]] = [
        lambda: producer.send(b"x"),
        producer.flush,
        lambda: producer.send_many([b"x"]),
        consumer.receive,
        consumer.batch_receive,
        consumer.receive_arrow,
        consumer.unsubscribe,
        lambda: consumer.seek(MessageId.earliest),
        consumer.get_last_message_id,
        reader.read_next,
        reader.has_message_available,
        client.close,
        lambda: client.create_producer(topic),
    ]
    for call in refusing:
        with pytest.raises(AlreadyClosed):
            await call()


@on_a_loop
async def test_leaving_and_closing_behind_other_ends_never_raise(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.asyncio_client()
    opened: list[Callable[[], Any]] = [
        lambda: client.create_producer(topic),
        lambda: client.subscribe(topic, "s"),
        lambda: client.create_reader(topic, MessageId.earliest),
    ]
    for open_it in opened:
        async with await open_it() as thing:
            pass
        with pytest.raises(AlreadyClosed, match=f"the {type(thing).__name__.lower()} is closed"):
            await thing.close()
        async with await open_it() as thing:
            await thing.close()
        unused = pickle.loads(ray_dumps(thing))
        async with unused:
            pass
        for call in (unused.close, unused._open_first):
            with pytest.raises(AlreadyClosed):
                await call()
    consumer = await client.subscribe(topic, "s")
    await consumer.unsubscribe()
    shut_down = [await open_it() for open_it in opened]
    client.shutdown()
    for thing in (consumer, *shut_down, client):
        await thing.close()
        with pytest.raises(AlreadyClosed):
            await thing.close()
        async with thing:
            pass


@on_a_loop
async def test_a_shut_down_client_fails_what_is_pending(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.asyncio_client()
    producer = await client.create_producer(topic)
    broker.cluster.kill(topic, keep_down=True)
    pending = asyncio.create_task(producer.send(b"x"))
    await turns(3)
    client.shutdown()
    for sending in (pending, producer.send(b"y")):
        with pytest.raises(PulsarException) as raised:
            await sending
        assert type(raised.value) is AlreadyClosed
    await client.close()
    broker.cluster.allow(topic)


@on_a_loop
async def test_a_cancelled_opening_leaves_nothing_behind(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        await client.create_producer(topic)
        broker.cluster.partition(topic).freeze()
        opening = asyncio.create_task(client.create_producer(topic, "mine"))
        await turns(100)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        broker.cluster.partition(topic).thaw()

        async def opens() -> bool:
            try:
                await (await client.create_producer(topic, "mine")).send(b"x")
            except PulsarException:
                return False
            return True

        while not await opens():
            await asyncio.sleep(0.05)


@on_a_loop
async def test_unsubscribe_deletes_the_subscription(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s")
        assert (consumer.topic(), consumer.subscription_name()) == (topic, "s")
        await producer.send(b"old")
        await consumer.unsubscribe()
        again = await client.subscribe(topic, "s")
        await producer.send(b"new")
        assert await values(again, 1) == [b"new"]
        assert await values(await client.subscribe(topic, "t", initial_position=EARLIEST), 2) == [
            b"old",
            b"new",
        ]


@on_a_loop
async def test_pickled_handles_connect_at_their_first_call_and_share_a_client(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    made = broker.asyncio_client()
    inner = made._inner

    def other_process(*_: object) -> object:
        inner.live_on(asyncio.get_running_loop())
        return inner

    monkeypatch.setattr(client_module, "shared_client", other_process)
    async with broker.asyncio_client() as client, made:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
        reader = await client.create_reader(topic, MessageId.earliest)
        sender, receiver, reading = pickle.loads(ray_dumps((producer, consumer, reader)))
        assert not sender.is_connected()
        with pytest.raises(NotConnected):
            sender.producer_name()
        await consumer.close()
        assert not receiver.is_connected()
        await asyncio.gather(*(sender.send(value) for value in numbers(0, 3)))
        assert sender.producer_name() != producer.producer_name()
        assert await values(receiver, 3) == numbers(0, 3)
        assert (await reading.read_next()).data() == b"000000"
        await sender.close()
    await until(lambda: broker.stored(topic) == numbers(0, 3))


@on_a_loop
async def test_wrong_topics_and_patterns_are_refused(broker: Broker) -> None:
    async with broker.asyncio_client() as client:
        with pytest.raises(ValueError, match="topic"):
            await client.subscribe(["a"], "s", is_pattern_topic=True)
        with pytest.raises(ValueError, match="regular expression"):
            await client.subscribe("(", "s", is_pattern_topic=True)
        with pytest.raises(ValueError, match="consumer_type"):
            await client.subscribe("a", "s", consumer_type=None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="service_url"):
            pulsar.Client("nowhere")
