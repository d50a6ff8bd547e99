"""Acknowledgments and failures of a consumer in every form, over both kinds of carrier.

In threads, in asyncio, and what a task gets of either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConsumerEndpoint
from pulsar_ray.broker.subscription.cursor_flusher import CursorFlusher
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy, DeadLetterProducerContext
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.session.session_table import Session
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker, numbers
from tests.conformance.consumer_forms import FORMS, FormedConsumer, Forms
from tests.conformance.test_lost_moments import lose

SHARED = ConsumerType.Shared
KINDS = pytest.mark.parametrize("kind", [ConsumerType.Exclusive, SHARED], ids=str)
DEATHS = pytest.mark.parametrize("death", ["cut", "killed"])


@pytest.fixture(params=["socket", "ray"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=FORMS)
def forms(request: pytest.FixtureRequest, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forms]:
    made = Forms(broker, request.param, monkeypatch)
    yield made
    made.close()


def receive(consumer: FormedConsumer, count: int) -> list[Message]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def assert_quiet(consumer: FormedConsumer) -> None:
    with pytest.raises(Timeout):
        consumer.receive(QUIET_MS)


def counts(messages: list[Message]) -> list[tuple[bytes, int]]:
    return sorted((message.data(), message.redelivery_count()) for message in messages)


class Backoff:
    """Notes what it is asked, wherever it has been pickled to in this process."""

    asked: list[int] = []  # noqa: RUF012 - of the class, which goes by its name

    def next(self, redelivery_count: int) -> int:
        self.asked.append(redelivery_count)
        return 10


@pytest.fixture
def backoff() -> Backoff:
    Backoff.asked = []
    return Backoff()


def name_producer(context: DeadLetterProducerContext, arguments: dict[str, Any]) -> None:
    arguments["producer_name"] = f"mover of {context.input_topic_subscription_name}"


def test_failures_back_off_and_end_in_the_dead_letter_topic(
    broker: Broker, client: Client, forms: Forms, backoff: Backoff
) -> None:
    topic = broker.topic()
    policy = ConsumerDeadLetterPolicy(
        1,
        f"{topic}-dead",
        initial_subscription_name="keeps",
        dead_letter_producer_customizer=name_producer,
    )
    consumer = forms.subscribe(
        topic, "s", SHARED, dead_letter_policy=policy, negative_ack_redelivery_backoff=backoff
    )
    client.create_producer(topic).send_many(numbers(0, 3))
    for count in range(2):
        messages = receive(consumer, 3)
        assert counts(messages) == [(value, count) for value in numbers(0, 3)]
        for message in messages:
            consumer.negative_acknowledge(message)
    dead = client.subscribe(f"{topic}-dead", "keeps", SHARED)
    moved = [dead.receive(WAIT_MS) for _ in range(3)]
    assert sorted(message.data() for message in moved) == numbers(0, 3)
    assert {message.producer_name() for message in moved} == {"mover of s"}
    assert backoff.asked == [0] * 3 + [1] * 3
    assert_quiet(consumer)


def test_what_times_out_backs_off_and_ends_in_the_dead_letter_topic(
    broker: Broker, client: Client, forms: Forms, backoff: Backoff
) -> None:
    topic = broker.topic()
    dead = client.subscribe(f"{topic}-s-DLQ", "looks", initial_position=EARLIEST)
    consumer = forms.subscribe(
        topic,
        "s",
        SHARED,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        unacked_messages_timeout_ms=1000,
        ack_timeout_tick_time_ms=100,
        ack_timeout_redelivery_backoff=backoff,
    )
    client.create_producer(topic).send(b"x")
    for count in range(2):
        assert counts(receive(consumer, 1)) == [(b"x", count)]
    assert dead.receive(WAIT_MS).data() == b"x"
    assert backoff.asked == [0, 1]
    assert_quiet(consumer)


def test_messages_are_retried_and_end_in_the_dead_letter_topic(
    broker: Broker, client: Client, forms: Forms
) -> None:
    topic = broker.topic()
    dead = client.subscribe(f"{topic}-s-DLQ", "looks", initial_position=EARLIEST)
    consumer = forms.subscribe(
        topic, "s", SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1), enable_retry=True
    )
    client.create_producer(topic).send(b"x")
    (message,) = receive(consumer, 1)
    consumer.reconsume_later(message, timedelta(0), {"why": "too early"})
    (again,) = receive(consumer, 1)
    assert (again.topic_name(), again.properties()["RECONSUMETIMES"]) == (f"{topic}-s-RETRY", "1")
    consumer.reconsume_later(again, timedelta(0))
    moved = dead.receive(WAIT_MS)
    assert (moved.data(), moved.properties()["why"]) == (b"x", "too early")
    assert_quiet(consumer)


@pytest.mark.parametrize("by", ["message", "id", "cumulative"])
def test_a_receipt_means_durable(broker: Broker, client: Client, forms: Forms, by: str) -> None:
    topic = broker.topic()
    consumer = forms.subscribe(topic, "s", ack_receipt_enabled=True)
    client.create_producer(topic).send_many(numbers(0, 5))
    messages = receive(consumer, 5)
    if by == "cumulative":
        consumer.acknowledge_cumulative(messages[3])
    else:
        for message in messages[:4]:
            consumer.acknowledge(message if by == "message" else message.message_id())
    flusher = broker.served(topic, "s")._durability
    assert isinstance(flusher, CursorFlusher)
    assert flusher._store.durable_mark_delete[1] == messages[3].message_id().entry_id()


def test_acknowledgments_gather_up_to_their_number_and_go_with_a_close(
    broker: Broker, client: Client, forms: Forms
) -> None:
    topic = broker.topic()
    consumer = forms.subscribe(topic, "s", SHARED, ack_grouping_time_ms=600_000, ack_grouping_max_size=3)
    client.create_producer(topic).send_many(numbers(0, 6))
    messages = receive(consumer, 6)
    for message in messages[:2]:
        consumer.acknowledge(message)
    assert not consumer.core.partitions.all[0].requests.unanswered()
    assert broker.unacked(topic, "s") == [6], "they are not sent one by one"
    consumer.acknowledge(messages[2])
    wait_until(lambda: broker.unacked(topic, "s") == [3], what="the three")
    consumer.acknowledge(messages[3])
    consumer.close()
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s", SHARED)
    assert sorted(again.receive(WAIT_MS).data() for _ in range(2)) == numbers(4, 6)


@KINDS
def test_everything_unacknowledged_comes_again_on_request(
    broker: Broker, client: Client, forms: Forms, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = forms.subscribe(topic, "s", kind)
    client.create_producer(topic).send_many(numbers(0, 6))
    consumer.acknowledge(receive(consumer, 4)[1])
    consumer.redeliver_unacknowledged_messages()
    again = receive(consumer, 5)
    left = [b"000000", *numbers(2, 6)]
    assert counts(again) == [(value, 1 if value < b"000004" else 0) for value in left]
    if kind == ConsumerType.Exclusive:
        assert [message.data() for message in again] == left
    assert_quiet(consumer)


class LostAnswer:
    """Loses the first answer of a kind, with its connection or with its dispatcher."""

    def __init__(self, broker: Broker, topic: str, death: str) -> None:
        self._kill = lambda: broker.cluster.kill(f"{topic} -> s")
        self._death = death
        self.link: Any = None
        self.is_lost = False
        self._killing: threading.Thread | None = None

    def is_lost_now(self) -> bool:
        """Whether this is the one; called on the dispatcher's loop."""
        if self.is_lost:
            return False
        self.is_lost = True
        if self._death == "cut":
            lose(self.link)
        else:
            self._killing = threading.Thread(target=self._kill)
            self._killing.start()
        return True

    def join(self) -> None:
        if self._killing is not None:
            self._killing.join(WAIT_MS / 1000)


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[LostAnswer], None]:
    def patch(lost: LostAnswer) -> None:
        durable, done = ServedSubscription._answer_durable, ServedSubscription._answer_done

        async def answer_durable(
            host: ServedSubscription, session: Session, request_id: int, version: int, *, at_once: bool
        ) -> None:
            if not lost.is_lost_now():
                await durable(host, session, request_id, version, at_once=at_once)

        def answer_done(host: ServedSubscription, endpoint: ConsumerEndpoint, request_id: int) -> None:
            if not lost.is_lost_now():
                done(host, endpoint, request_id)

        monkeypatch.setattr(ServedSubscription, "_answer_durable", answer_durable)
        monkeypatch.setattr(ServedSubscription, "_answer_done", answer_done)

    return patch


@DEATHS
def test_an_acknowledgment_whose_answer_is_lost_is_said_again(
    broker: Broker,
    client: Client,
    forms: Forms,
    death: str,
    lose_answers: Callable[[LostAnswer], None],
) -> None:
    topic = broker.topic()
    consumer = forms.subscribe(topic, "s", SHARED, ack_receipt_enabled=True)
    client.create_producer(topic).send_many(numbers(0, 3))
    messages = receive(consumer, 3)
    lost = LostAnswer(broker, topic, death)
    lost.link = consumer.link
    lose_answers(lost)
    consumer.acknowledge(messages[1])
    assert lost.is_lost
    lost.join()
    consumer.close()
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s", SHARED)
    assert sorted(again.receive(WAIT_MS).data() for _ in range(2)) == [b"000000", b"000002"]


@DEATHS
@KINDS
def test_a_request_for_everything_whose_answer_is_lost_is_carried_out_once(
    broker: Broker,
    client: Client,
    forms: Forms,
    kind: ConsumerType,
    death: str,
    lose_answers: Callable[[LostAnswer], None],
) -> None:
    topic = broker.topic()
    consumer = forms.subscribe(topic, "s", kind)
    client.create_producer(topic).send_many(numbers(0, 4))
    receive(consumer, 4)
    lost = LostAnswer(broker, topic, death)
    lost.link = consumer.link
    lose_answers(lost)
    consumer.redeliver_unacknowledged_messages()
    again = receive(consumer, 4)
    came = [message.data() for message in again]
    assert (came if kind == ConsumerType.Exclusive else sorted(came)) == numbers(0, 4)
    partition = consumer.core.partitions.all[0]
    wait_until(lambda: lost.is_lost and not partition.requests.unanswered(), what="the answer")
    lost.join()
    # A dispatcher that dies may do so before it has counted.
    assert {message.redelivery_count() for message in again} <= ({1} if death == "cut" else {0, 1})
    assert_quiet(consumer)


@DEATHS
@pytest.mark.parametrize("by", ["message", "id", "serialized id"])
def test_a_failure_whose_answer_is_lost_counts_once(
    broker: Broker,
    client: Client,
    forms: Forms,
    death: str,
    by: str,
    lose_answers: Callable[[LostAnswer], None],
) -> None:
    topic = broker.topic()
    consumer = forms.subscribe(topic, "s", SHARED, negative_ack_redelivery_delay_ms=0)
    client.create_producer(topic).send_many(numbers(0, 3))
    message = receive(consumer, 3)[1]
    failed: Message | MessageId = message
    if by != "message":
        failed = message.message_id()
    if by == "serialized id":
        failed = MessageId.deserialize(message.message_id().serialize())
    lost = LostAnswer(broker, topic, death)
    lost.link = consumer.link
    lose_answers(lost)
    consumer.negative_acknowledge(failed)
    again = receive(consumer, 1)
    partition = consumer.core.partitions.all[0]
    wait_until(lambda: lost.is_lost and not partition.requests.unanswered(), what="the answer")
    lost.join()
    assert counts(again) == [(b"000001", 1)]
    assert_quiet(consumer)
