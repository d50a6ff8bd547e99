"""Every call in every callback returns, or is refused at once: a table of calls times callbacks."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.consumer.table_view import TableView
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy, ConsumerEventListener
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidConfiguration,
    NotAllowedError,
    OperationNotSupported,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker

_NAMES = itertools.count()
PATIENCE_S = 20.0
"""Less than any timeout of the client: what stands still is seen to."""
REFUSALS = (
    NotAllowedError,
    AlreadyClosed,
    ConsumerBusy,
    InvalidConfiguration,
    OperationNotSupported,
    ProducerQueueIsFull,
    Timeout,
)


class World:
    """Handles of one client. A callback's own handle takes the place of the one of its kind."""

    def __init__(self, broker: Broker) -> None:
        self.client: Client = broker.client(operation_timeout_seconds=120)
        self.topic, self.other = broker.topic(2), broker.topic()
        self.admin: Admin = broker.admin(operation_timeout_seconds=120)
        self.bystander = self.client.create_producer(self.other, send_timeout_millis=0)
        self.producer: Producer = self.client.create_producer(self.topic, send_timeout_millis=0)
        self.consumer: Consumer = self.subscribe("s")
        self.reader: Reader = self.client.create_reader(self.topic, MessageId.earliest)
        self.view: TableView = self.client.create_table_view(self.topic)
        for number in range(3):
            self.producer.send(b"%d" % number, partition_key=str(number))
        self.message: Message = self.consumer.receive(WAIT_MS)

    def subscribe(self, name: str, **arguments: Any) -> Consumer:
        return self.client.subscribe(
            self.topic,
            f"{name}{next(_NAMES)}",
            ConsumerType.Shared,
            initial_position=EARLIEST,
            **{
                "enable_retry": True,
                "dead_letter_policy": ConsumerDeadLetterPolicy(5),
                **arguments,
            },
        )


CALLS: dict[str, Callable[[World], object]] = {
    "producer.send": lambda world: world.producer.send(b"x", partition_key="k"),
    "producer.send_many": lambda world: world.bystander.send_many([b"x"]),
    "producer.send_arrow": lambda world: world.bystander.send_arrow(pa.table({"value": [b"x"]})),
    "producer.send_async": lambda world: world.bystander.send_async(b"x", None),
    "producer.send_many_async": lambda world: world.bystander.send_many_async([b"x"], None),
    "producer.flush": lambda world: world.producer.flush(),
    "producer.close": lambda world: world.producer.close(),
    "client.create_producer": lambda world: world.client.create_producer(world.topic),
    "client.subscribe": lambda world: world.client.subscribe(world.topic, f"new{next(_NAMES)}"),
    "client.create_reader": lambda world: world.client.create_reader(world.other, MessageId.earliest),
    "client.create_table_view": lambda world: world.client.create_table_view(world.other),
    "client.get_topic_partitions": lambda world: world.client.get_topic_partitions(world.topic),
    "client.close": lambda world: world.client.close(),
    "client.shutdown": lambda world: world.client.shutdown(),
    "consumer.receive": lambda world: world.consumer.receive(100),
    "consumer.receive_async": lambda world: world.consumer.receive_async(),
    "consumer.batch_receive": lambda world: world.consumer.batch_receive(),
    "consumer.receive_arrow": lambda world: world.consumer.receive_arrow(10, 100),
    "consumer.has_message_available": lambda world: world.consumer.has_message_available(),
    "consumer.acknowledge": lambda world: world.consumer.acknowledge(world.message),
    "consumer.negative_acknowledge": lambda world: world.consumer.negative_acknowledge(world.message),
    "consumer.reconsume_later": lambda world: world.consumer.reconsume_later(
        world.message, timedelta(seconds=1)
    ),
    "consumer.redeliver": lambda world: world.consumer.redeliver_unacknowledged_messages(),
    "consumer.seek": lambda world: world.consumer.seek(MessageId.earliest),
    "consumer.get_last_message_ids": lambda world: world.consumer.get_last_message_ids(),
    "consumer.unsubscribe": lambda world: world.consumer.unsubscribe(),
    "consumer.close": lambda world: world.consumer.close(),
    "reader.read_next": lambda world: world.reader.read_next(100),
    "reader.has_message_available": lambda world: world.reader.has_message_available(),
    "reader.seek": lambda world: world.reader.seek(MessageId.latest),
    "reader.close": lambda world: world.reader.close(),
    "view.get": lambda world: world.view.get("k"),
    "view.for_each": lambda world: world.view.for_each(lambda *_: None),
    "view.for_each_and_listen": lambda world: world.view.for_each_and_listen(lambda *_: None),
    "view.close": lambda world: world.view.close(),
    "admin.topics.stats": lambda world: world.admin.topics.stats(world.other),
    "admin.topics.delete": lambda world: world.admin.topics.delete(world.topic, force=True),
    "admin.namespaces.list": lambda world: world.admin.namespaces.list("public"),
    "admin.close": lambda world: world.admin.close(),
}
ENDS_CLIENT = {"client.close", "client.shutdown"}
SPENDS = {*ENDS_CLIENT, "consumer.unsubscribe", "admin.topics.delete"} | {
    name for name in CALLS if name.endswith(".close")
}
"""Behind these a world has lost handles that others use."""
CALLS_OF_WORLD = 8
"""Then nothing of it runs any more: each callback leaves handles with actors of their own."""
Act = Callable[[], None]


class Told(ConsumerEventListener):
    """Acts when its consumer becomes the active one, of any partition."""

    def __init__(self, world: World, act: Act) -> None:
        self._world = world
        self._act = act

    def became_active(self, consumer: Consumer, partition_id: int) -> None:
        self._world.consumer = consumer
        self._act()

    def became_inactive(self, consumer: Consumer, partition_id: int) -> None:
        """Nothing to do."""


class Backoff:
    """Acts when it is asked."""

    def __init__(self, act: Act) -> None:
        self._act = act

    def next(self, redelivery_count: int) -> int:
        self._act()
        return 100


def in_receipt(world: World, act: Act) -> None:
    world.producer.send_async(b"x", lambda *_: act(), partition_key="k")


def in_receipt_that_another_thread_reads(world: World, act: Act) -> None:
    world.producer.send_async(b"x", lambda *_: act(), partition_key="k")
    world.producer.flush()


def in_receipt_of_a_failure(world: World, act: Act) -> None:
    held = world.client.create_producer(
        world.topic, batching_enabled=True, batching_max_publish_delay_ms=600_000
    )
    held.send_async(b"x", lambda *_: act(), partition_key="k")
    world.producer = held
    held.shut_down()


def in_bulk_receipt(world: World, act: Act) -> None:
    world.producer.send_many_async([b"x"], lambda *_: act())


def in_arrow_receipt(world: World, act: Act) -> None:
    world.producer.send_arrow_async(pa.table({"value": [b"x"]}), lambda *_: act())


def in_message_listener(world: World, act: Act) -> None:
    def listener(consumer: Consumer, message: Message) -> None:
        world.consumer, world.message = consumer, message
        act()

    world.subscribe("listening", message_listener=listener)


def in_reader_listener(world: World, act: Act) -> None:
    def listener(reader: Reader, _message: Message) -> None:
        world.reader = reader
        act()

    world.client.create_reader(world.topic, MessageId.earliest, reader_listener=listener)


def in_event_listener(world: World, act: Act) -> None:
    world.client.subscribe(
        world.other, f"told{next(_NAMES)}", ConsumerType.Failover, consumer_event_listener=Told(world, act)
    )


def in_nack_backoff(world: World, act: Act) -> None:
    world.consumer = world.subscribe("failing", negative_ack_redelivery_backoff=Backoff(act))
    world.message = world.consumer.receive(WAIT_MS)
    world.consumer.negative_acknowledge(world.message)


def in_ack_timeout_backoff(world: World, act: Act) -> None:
    world.consumer = world.subscribe(
        "late",
        unacked_messages_timeout_ms=10_000,
        ack_timeout_tick_time_ms=100,
        ack_timeout_redelivery_backoff=Backoff(act),
    )
    world.message = world.consumer.receive(WAIT_MS)


def in_router(world: World, act: Act) -> None:
    def router(_message: Message, _count: int) -> int:
        act()
        return 0

    world.producer = world.client.create_producer(world.topic, message_router=router)
    world.producer.send_async(b"x", None)


def in_customizer(world: World, act: Act) -> None:
    policy = ConsumerDeadLetterPolicy(5, retry_letter_producer_customizer=lambda *_: act())
    world.consumer = world.subscribe("retrying", dead_letter_policy=policy)
    message = world.consumer.receive(WAIT_MS)
    with suppress(*REFUSALS):
        world.consumer.reconsume_later(message, timedelta(seconds=1))


def in_dead_letter_customizer(world: World, act: Act) -> None:
    policy = ConsumerDeadLetterPolicy(1, dead_letter_producer_customizer=lambda *_: act())
    world.consumer = world.subscribe("dying", dead_letter_policy=policy, negative_ack_redelivery_delay_ms=0)
    for _ in range(2):
        message = world.message = world.consumer.receive(WAIT_MS)
        while message.partition_key() != "1":
            message = world.consumer.receive(WAIT_MS)
        world.consumer.negative_acknowledge(message)


def in_view_listener(world: World, act: Act) -> None:
    new = f"new{next(_NAMES)}"

    def listener(key: str, _value: bytes) -> None:
        if key == new:
            act()

    world.view.for_each_and_listen(listener)
    world.producer.send(b"x", partition_key=new)


def in_first_values_of_a_view(world: World, act: Act) -> None:
    world.view.for_each_and_listen(lambda *_: act())


def in_done_callback(world: World, act: Act) -> None:
    # Whatever is stored already has to come first: what the callback waits for comes behind.
    world.consumer = world.client.subscribe(world.other, f"awaited{next(_NAMES)}")
    world.consumer.receive_async().add_done_callback(lambda _: act())
    world.bystander.send(b"x")


def in_done_callback_at_the_end(world: World, act: Act) -> None:
    world.consumer = world.client.subscribe(world.other, f"awaited{next(_NAMES)}")
    world.consumer.receive_async().add_done_callback(lambda _: act())
    world.consumer.close()


CALLBACKS = [
    in_receipt,
    in_receipt_that_another_thread_reads,
    in_receipt_of_a_failure,
    in_bulk_receipt,
    in_arrow_receipt,
    in_message_listener,
    in_reader_listener,
    in_event_listener,
    in_nack_backoff,
    in_ack_timeout_backoff,
    in_router,
    in_customizer,
    in_dead_letter_customizer,
    in_view_listener,
    in_first_values_of_a_view,
    in_done_callback,
    in_done_callback_at_the_end,
]
# In the I/O thread, a listener's, the sender's, and under an event: all others are called like one of these.
OF_EACH_KIND = {in_receipt, in_message_listener, in_router, in_event_listener}


class Outcome:
    """Makes one call in the first callback that comes, and keeps what becomes of it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._first = threading.Lock()
        self.is_over = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> None:
        if not self._first.acquire(blocking=False):
            return
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test names it
            self.error = error
        self.is_over.set()


def ends(
    action: Callable[[], object],
    what: str,
    problems: list[str],
    also: tuple[type[PulsarException], ...] = (),
) -> None:
    """Run an action on a thread of its own, which must come to an end."""

    def run() -> None:
        try:
            action()
        except PulsarException as error:
            if not isinstance(error, (*REFUSALS, *also)):
                problems.append(f"{what} raised {error!r}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        problems.append(f"{what} stands still")


@pytest.mark.parametrize(
    "callback",
    [
        callback if callback in OF_EACH_KIND else pytest.param(callback, marks=pytest.mark.long)
        for callback in CALLBACKS
    ],
    ids=lambda callback: callback.__name__,
)
def test_each_call_returns_or_is_refused_at_once(
    make_broker: Callable[..., Broker], callback: Callable[[World, Act], None]
) -> None:
    problems: list[str] = []
    broker = make_broker()
    world = World(broker)
    for number, (name, call) in enumerate(sorted(CALLS.items(), key=lambda item: item[0] in SPENDS), 1):
        act = Outcome(functools.partial(call, world))
        # A send whose router has deleted its topic meanwhile may say so.
        gone = (TopicNotFound,) if name == "admin.topics.delete" else ()
        ends(functools.partial(callback, world, act), f"the cause of {name}", problems, gone)
        if not act.is_over.wait(PATIENCE_S):
            problems.append(f"{name} stands still")
        elif act.error is not None and not isinstance(act.error, REFUSALS):
            problems.append(f"{name} raised {act.error!r}")
        if name not in ENDS_CLIENT or isinstance(act.error, NotAllowedError):
            ends(functools.partial(world.bystander.send, b"after"), f"another send behind {name}", problems)
        if name in SPENDS or not number % CALLS_OF_WORLD:
            ends(world.client.shutdown, f"shutdown behind {name}", problems)
            broker.restart(kill=True)
            world = World(broker)
    assert not problems
