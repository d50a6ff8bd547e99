"""Listeners that are called while their consumer, reader or client is closed, over every carrier."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import AlreadyClosed, PulsarException
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values

DEADLINE_S = 20.0


class Busy:
    """A listener that stays in its call until it may go on, and acknowledges behind that."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.errors: list[BaseException] = []
        self.entered = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, consumer: Consumer, message: Message) -> None:
        self.calls.append(message.data())
        self.entered.set()
        assert self.may_go_on.wait(DEADLINE_S)
        try:
            consumer.acknowledge(message)
        except Exception as error:
            self.errors.append(error)
            raise


class Told(ConsumerEventListener):
    """Has a thread of its own, too."""

    def became_active(self, consumer: Consumer, partition_id: int) -> None:
        """Nothing to do."""

    def became_inactive(self, consumer: Consumer, partition_id: int) -> None:
        """Nothing to do."""


def has_more_than(values: set[bytes], count: int) -> bool:
    return len(values) > count


def listener_threads() -> list[threading.Thread]:
    return [
        each
        for each in threading.enumerate()
        if each.name.startswith(("pulsar-ray-listener", "pulsar-ray-activity"))
    ]


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """Where nothing but its lease ends the session of a client that was shut down, that is short."""
    return make_broker(session_lease_seconds=6.0)


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    wait_until(lambda: not listener_threads(), DEADLINE_S, "the end of all listeners' threads")


@pytest.fixture(autouse=True)
def _often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


ENDS: dict[str, Callable[[Consumer, Client], None]] = {
    "close": lambda consumer, _: consumer.close(),
    "client.close": lambda _, client: client.close(),
    "client.shutdown": lambda _, client: client.shutdown(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_busy_listener_is_not_called_again_and_its_messages_come_to_the_next(
    broker: Broker, end: Callable[[Consumer, Client], None]
) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic).send_many(numbers(0, 50))
    client, busy = broker.client(), Busy()
    consumer = client.subscribe(
        topic, "s", ConsumerType.Failover, message_listener=busy, initial_position=EARLIEST
    )
    assert busy.entered.wait(DEADLINE_S)
    end(consumer, client)
    next_one = broker.client().subscribe(topic, "s", ConsumerType.Failover)
    assert values(next_one, 50) == numbers(0, 50)
    busy.may_go_on.set()
    wait_until(lambda: not listener_threads(), DEADLINE_S, "the end of the listener's thread")
    assert busy.calls == [b"000000"]
    assert [type(error) for error in busy.errors] == [AlreadyClosed]


def test_a_call_that_ends_soon_is_waited_for_and_its_acknowledgment_counts(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic).send_many(numbers(0, 5))
    client, busy = broker.client(), Busy()
    client.subscribe(
        topic, "s", message_listener=busy, initial_position=EARLIEST, ack_grouping_time_ms=60_000
    )
    assert busy.entered.wait(DEADLINE_S)
    threading.Timer(0.2, busy.may_go_on.set).start()
    client.close()
    assert busy.calls == [b"000000"]
    assert not busy.errors
    assert values(broker.client().subscribe(topic, "s"), 4) == numbers(1, 5)


INSIDE: dict[str, Callable[[Consumer, Client], None]] = {
    **ENDS,
    "unsubscribe": lambda consumer, _: consumer.unsubscribe(),
}


@pytest.mark.parametrize("end", INSIDE.values(), ids=INSIDE)
def test_a_listener_may_end_everything_in_its_first_call(
    broker: Broker, end: Callable[[Consumer, Client], None]
) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic).send_many(numbers(0, 5))

    for _ in range(3):
        ends_in_its_first_call(broker.client(), topic, end)


def ends_in_its_first_call(client: Client, topic: str, end: Callable[[Consumer, Client], None]) -> None:
    outcome: list[BaseException | None] = []

    def listener(consumer: Consumer, message: Message) -> None:
        try:
            end(consumer, client)
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)
            raise

    client.subscribe(
        topic,
        "s",
        ConsumerType.Failover,
        message_listener=listener,
        initial_position=EARLIEST,
        consumer_event_listener=Told(),
    )
    wait_until(lambda: outcome, DEADLINE_S, "the end of the first call")
    assert outcome == [None]


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_event_listener_may_end_everything_in_its_first_call(
    broker: Broker, end: Callable[[Consumer, Client], None]
) -> None:
    """Its thread has ended behind each test of this module."""
    topic = broker.topic()
    for _ in range(10):
        client, ended = broker.client(), threading.Event()

        class Ends(Told):
            def became_active(self, consumer: Consumer, partition_id: int) -> None:
                try:
                    end(consumer, client)  # noqa: B023 - the listener ends before the next round
                finally:
                    ended.set()  # noqa: B023 - as above

        try:
            client.subscribe(topic, "s", ConsumerType.Failover, consumer_event_listener=Ends())
        except AlreadyClosed:
            assert end is not ENDS["close"]
        assert ended.wait(DEADLINE_S)
        assert len(client._handles) == 0
    wait_until(lambda: not listener_threads(), DEADLINE_S, "the end of the listener's thread")
    assert len(client._handles) == 0


def test_listeners_that_close_each_other_and_their_client_all_come_to_an_end(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic).send_many(numbers(0, 5))
    client = broker.client()
    consumers: list[Consumer] = []
    all_there, raised = threading.Event(), []
    together = threading.Barrier(3)

    def listener(_: Consumer, message: Message) -> None:
        assert all_there.wait(DEADLINE_S)
        if message.data() != b"000000":
            return
        together.wait(DEADLINE_S)
        for close in (*(each.close for each in consumers), client.close):
            try:
                close()
            except AlreadyClosed:
                pass
            except PulsarException as error:
                raised.append(error)

    consumers += [
        client.subscribe(topic, name, message_listener=listener, initial_position=EARLIEST) for name in "abc"
    ]
    all_there.set()
    wait_until(lambda: not listener_threads(), DEADLINE_S, "the end of the listeners")
    assert raised == []
    assert len(client._handles) == 0
    for name in ("a", "b", "c"):
        values(broker.client().subscribe(topic, name), 1)


@pytest.mark.parametrize("by_client", [False, True], ids=["reader", "client"])
def test_a_busy_readers_listener_is_not_called_again(broker: Broker, by_client: bool) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic).send_many(numbers(0, 20))
    client, heard = broker.client(), []
    entered, may_go_on = threading.Event(), threading.Event()

    def listener(reader: Reader, message: Message) -> None:
        heard.append(message.data())
        entered.set()
        assert may_go_on.wait(DEADLINE_S)

    reader = client.create_reader(topic, MessageId.earliest, reader_listener=listener)
    assert entered.wait(DEADLINE_S)
    (client if by_client else reader).close()
    may_go_on.set()
    wait_until(lambda: not listener_threads(), DEADLINE_S, "the end of the listener's thread")
    assert heard == [b"000000"]
    assert len(client._handles) == 0


def test_a_listener_that_raises_is_called_with_the_rest_and_closes_as_others_do(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.client().create_producer(topic).send_many(numbers(0, 30))
    client, heard = broker.client(), []

    def listener(consumer: Consumer, message: Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)
        raise ValueError(message.data())

    client.subscribe(topic, "s", message_listener=listener, initial_position=EARLIEST)
    wait_until(lambda: len(heard) == 30, what="all of them")
    client.close()
    assert sorted(heard) == numbers(0, 30)
    assert not broker.client().subscribe(topic, "s").has_message_available()


def test_a_paused_listener_closes_at_once(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", message_listener=lambda _, m: None, start_paused=True)
    client.create_producer(topic).send(b"x")
    consumer.close()
    assert not listener_threads()
    assert client.subscribe(topic, "s").receive(WAIT_MS).data() == b"x"


def test_messages_come_while_a_listener_of_several_topics_is_closed(broker: Broker, client: Client) -> None:
    topics = [broker.topic(2) for _ in range(2)]
    producers = [client.create_producer(topic) for topic in topics]
    sent, stop = [0], threading.Event()

    def send() -> None:
        while not stop.is_set():
            for producer in producers:
                producer.send(b"%06d" % sent[0])
                sent[0] += 1

    sending = threading.Thread(target=send)
    sending.start()
    done: set[bytes] = set()

    def listener(consumer: Consumer, message: Message) -> None:
        consumer.acknowledge(message)
        done.add(message.data())

    try:
        for _ in range(8):
            enough = len(done) + 5
            consumer = broker.client().subscribe(
                topics, "s", ConsumerType.Shared, message_listener=listener, initial_position=EARLIEST
            )
            wait_until(functools.partial(has_more_than, done, enough), what="messages come")
            consumer.close()
    finally:
        stop.set()
        sending.join(DEADLINE_S)
    rest = broker.client().subscribe(topics, "s", ConsumerType.Shared)
    count = sent[0] - len(done)
    came = set(values(rest, count))
    assert came | done == set(numbers(0, sent[0]))
    assert not came & done


def test_a_listener_whose_topic_is_deleted_says_so_once_and_ends(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", message_listener=lambda _consumer, _message: None)
    broker.admin().topics.delete(topic, force=True)
    wait_until(lambda: consumer.core.has_failed, DEADLINE_S, "the consumer's end")
    wait_until(lambda: not listener_threads(), DEADLINE_S, "the end of the listener's thread")
    said = [record for record in caplog.records if "could not be read" in record.message]
    assert len(said) <= 1
    consumer.close()
