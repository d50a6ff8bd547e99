"""Handles that their program lets go of without closing them are closed, over every carrier."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.asyncio import Client as AsyncioClient
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.endpoint.open_handles import FORGOTTEN
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values

SHARED = ConsumerType.Shared
COUNT = 40


@pytest.fixture
def client(broker: Broker) -> Client:
    return broker.client(forgets=True)


@pytest.fixture(autouse=True)
def _collected_by_hand() -> Iterator[None]:
    """What is closed here is closed because nobody refers to it, and not because the collector came by."""
    gc.disable()
    yield
    gc.enable()


@contextmanager
def forgets(what: str, topic: str = "") -> Iterator[None]:
    """Expects the warning of one that was forgotten."""
    text = f"unclosed {what}" + (f" of {topic}" if topic else "")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
        wait_until(partial(is_noticed, told, text), what=text)


def is_noticed(told: Any, text: str) -> bool:
    """Whether one of the warnings begins so; others may be about what earlier tests have left."""
    if any(str(each.message).startswith(text) for each in list(told)):
        return True
    # The traceback of an error on a faulty carrier may refer to it.
    gc.collect()
    return False


def publishers(broker: Broker, topic: str) -> int:
    with broker.admin() as admin:
        return len(admin.topics.stats(topic)["publishers"])


def subscriptions(broker: Broker, topic: str) -> list[str]:
    with broker.admin() as admin:
        return list(admin.topics.stats(topic)["subscriptions"])


CONSUMED: dict[str, tuple[int, Callable[[str], Any]]] = {
    "a topic": (0, lambda topic: topic),
    "partitions": (3, lambda topic: topic),
    "a list": (0, lambda topic: [topic, f"{topic}-beside"]),
    "a pattern": (0, lambda topic: re.compile(re.escape(topic) + "(-beside)?")),
}


@pytest.mark.parametrize("kind", CONSUMED)
def test_what_a_forgotten_consumer_had_goes_to_others_and_counts_as_no_failure(
    broker: Broker, client: Client, kind: str
) -> None:
    partitions, topics_of = CONSUMED[kind]
    topic = broker.topic(partitions)
    client.subscribe(topic, "s", SHARED).close()
    producer = client.create_producer(topic)
    for number in range(COUNT):
        producer.send(b"%d" % number, partition_key=str(number))

    def work() -> None:
        consumer = client.subscribe(topics_of(topic), "s", SHARED, initial_position=EARLIEST)
        values(consumer, 3)

    with forgets("consumer"):
        work()
    other = client.subscribe(
        topics_of(topic), "s", SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1, f"{topic}-dead")
    )
    got = [other.receive(WAIT_MS) for _ in range(COUNT)]
    assert {message.data() for message in got} == {b"%d" % number for number in range(COUNT)}
    assert {message.redelivery_count() for message in got} == {0}


def test_the_place_of_a_forgotten_consumer_is_free_at_once(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    other = broker.client(forgets=True)
    for _ in range(5):
        for opener in (client, other):
            with forgets("consumer", topic):
                opener.subscribe(topic, "s")
            with forgets("producer", topic):
                opener.create_producer(topic, "named").send(b"x")


def test_one_in_a_circle_is_closed_once_it_is_collected(broker: Broker, client: Client) -> None:
    topic = broker.topic()

    def forget() -> None:
        circle: list[Any] = [client.subscribe(topic, "s")]
        circle.append(circle)

    forget()
    with forgets("consumer", topic):
        gc.collect()
    client.subscribe(topic, "s").close()


@pytest.mark.parametrize("partitions", [0, 3])
def test_forgotten_producers_send_their_batches_and_leave(
    broker: Broker, client: Client, partitions: int
) -> None:
    topic = broker.topic(partitions)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 10):
        with forgets("producer", topic):
            client.create_producer(
                topic, batching_enabled=True, batching_max_publish_delay_ms=600_000
            ).send_async(value, None)
    assert sorted(values(consumer, 10)) == numbers(0, 10)
    if not partitions:
        wait_until(lambda: publishers(broker, topic) == 0, what="no publisher is left")


def test_a_client_that_is_closed_waits_for_what_was_forgotten(broker: Broker) -> None:
    topic = broker.topic()
    consumer = broker.client(forgets=True).subscribe(topic, "s")
    for value in numbers(0, 10):
        closing = broker.client(forgets=True)
        closing.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=600_000
        ).send_async(value, None)
        closing.close()
    assert values(consumer, 10) == numbers(0, 10)


def test_forgotten_readers_and_table_views_leave(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"x", partition_key="k")
    with forgets("reader", topic):
        client.create_reader(topic, MessageId.earliest).read_next(WAIT_MS)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert client.create_table_view(topic).get("k") == b"x"
        wait_until(partial(is_noticed, warned, f"unclosed table view of {topic}"), what="it is noticed")
    wait_until(lambda: not subscriptions(broker, topic), what="no reader is left")


def test_handles_with_listeners_stay_and_with_them_their_client(broker: Broker) -> None:
    topic = broker.topic()
    heard: list[tuple[str, bytes]] = []

    def listen() -> None:
        client = broker.client(forgets=True)
        broker.clients.remove(client)
        client.subscribe(
            topic, "s", message_listener=lambda _, message: heard.append(("consumer", message.data()))
        )
        client.create_reader(
            topic,
            MessageId.latest,
            reader_listener=lambda _, message: heard.append(("reader", message.data())),
        )
        client.create_table_view(topic).for_each_and_listen(lambda _, value: heard.append(("view", value)))

    gc.collect()  # what other tests have left
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Other tests leave theirs to whoever collects garbage, or to a thread that ends.
        warnings.filterwarnings("ignore", "unclosed admin", ResourceWarning)
        listen()
        gc.collect()
        broker.client(forgets=True).create_producer(topic).close()
    producer = broker.client(forgets=True).create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value, partition_key="k")
    expected = {(who, value) for who in ("consumer", "reader", "view") for value in numbers(0, 3)}
    wait_until(lambda: set(heard) == expected, what="all listeners hear all")


def test_a_forgotten_client_ends_with_its_handles(broker: Broker) -> None:
    topic = broker.topic()
    forgotten: list[weakref.ref[Any]] = []

    def work() -> None:
        client = broker.client(forgets=True)
        broker.clients.remove(client)
        forgotten.extend(weakref.ref(handle) for handle in (client, client.create_producer(topic)))

    told: list[str] = []

    def are_gone() -> bool:
        # A warning refers to what it is about.
        told.extend(str(warned.pop().message) for _ in list(warned))
        return [ref() for ref in forgotten] == [None, None]

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        work()
        wait_until(are_gone, what="client and producer are gone")
    producer, client = told
    assert producer.startswith(f"unclosed producer of {topic}: ")
    assert client.startswith("unclosed client: ")
    wait_until(lambda: publishers(broker, topic) == 0, what="no publisher is left")


def test_a_forgotten_admin_is_closed(broker: Broker) -> None:
    def work() -> weakref.ref[Admin]:
        admin = broker.admin()
        admin.namespaces.list("public")
        return weakref.ref(admin)

    with forgets("admin"):
        forgotten = work()
        gc.collect()
    wait_until(lambda: forgotten() is None, what="the admin is gone")


def test_what_was_unpickled_ends_in_silence(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    pickled = [
        pickled_through(client, handle)
        for handle in (client.create_producer(topic), client.subscribe(topic, "s"))
    ]
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for unpickle in pickled:
            _ = unpickle()  # and never used
            unpickle().topic()
        gc.collect()
    FORGOTTEN.settle(WAIT_MS / 1000)
    client.subscribe(topic, "s").close()


def pickled_through(client: Client, handle: Producer | Consumer) -> Callable[[], Any]:
    """What another process makes of a handle, with this client as the one that its handles share."""
    recreate, (_, options) = handle.__reduce__()
    handle.close()
    known = pickle.dumps(options)
    return lambda: recreate(client, pickle.loads(known))


def test_those_of_an_asyncio_client_are_closed_while_its_loop_runs(broker: Broker) -> None:
    topic = broker.topic()

    async def forget(client: AsyncioClient, what: str) -> None:
        if what == "producer":
            await (await client.create_producer(topic, "named")).send(b"x")
        elif what == "consumer":
            await (await client.subscribe(topic, "s")).receive()
        else:
            await (await client.create_reader(topic, MessageId.earliest)).read_next()

    async def work() -> None:
        async with broker.asyncio_client(forgets=True) as client:
            for what in ("producer", "consumer", "reader", "producer", "consumer"):
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    await forget(client, what)
                    noticed = partial(is_noticed, warned, f"unclosed {what} of {topic}")
                    await asyncio.to_thread(wait_until, noticed, what="it is noticed")

    with broker.client(forgets=True) as client:
        client.subscribe(topic, "s").close()
    asyncio.run(asyncio.wait_for(work(), 5 * WAIT_MS / 1000))
    wait_until(lambda: publishers(broker, topic) == 0, what="no publisher is left")


def test_a_finalizer_waits_for_no_lock(broker: Broker, client: Client) -> None:
    """It may run anywhere: here in a thread that holds the locks of what it hands the work to."""
    topic = broker.topic()
    held = [client.subscribe(topic, "s"), client.create_producer(topic)]

    def forget() -> None:
        with client._handles._lock, FORGOTTEN._changed, client._connection._lock, client._links._lock:
            held.clear()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=forget, daemon=True)
        thread.start()
        thread.join(WAIT_MS / 1000)
    assert not thread.is_alive()
    client.subscribe(topic, "s").close()


def test_a_message_that_waits_for_its_receiver_is_not_lost(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    future = client.subscribe(topic, "s", SHARED).receive_async()
    client.create_producer(topic).send(b"x")
    try:
        message: Message | None = future.result(WAIT_MS / 1000)
    except Exception:  # noqa: BLE001 - whether its consumer was closed before is open
        message = None
    if message is None:
        assert values(client.subscribe(topic, "s", SHARED), 1) == [b"x"]
