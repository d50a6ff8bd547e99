"""A process that ends in order has not crashed: what it had in hand comes again uncounted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import pytest

import pulsar_ray.asyncio
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.endpoint.last_words import LAST_WORDS
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers, receive
from tests.conformance.event_loop import turns

pytestmark = pytest.mark.usefixtures("carriers_are_kept")


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(reattach_grace_seconds=0.3, session_lease_seconds=3)


def test_what_a_leaving_process_has_in_hand_has_not_failed(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().subscribe(topic, "s", ConsumerType.Shared).close()
    broker.client().create_producer(topic).send_many(numbers(0, 3))
    for _ in range(4):
        consumer = broker.client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
        in_hand = consumer.receive(20_000)
        assert (in_hand.failures, in_hand.redelivery_count()) == (0, 0)
        LAST_WORDS.speak()
    again = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert sorted((m.data(), m.failures) for m in receive(again, 3)) == [(m, 0) for m in numbers(0, 3)]


def test_acknowledgments_and_failures_that_wait_are_told(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().subscribe(topic, "s", ConsumerType.Shared).close()
    broker.client().create_producer(topic).send_many(numbers(0, 3))
    consumer = broker.client().subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        ack_grouping_time_ms=600_000,
        negative_ack_redelivery_delay_ms=600_000,
    )
    first, second, _ = (consumer.receive(20_000) for _ in range(3))
    consumer.acknowledge(first)
    consumer.negative_acknowledge(second)
    LAST_WORDS.speak()
    again = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert sorted((m.data(), m.failures) for m in receive(again, 2)) == [(b"000001", 1), (b"000002", 0)]


def test_the_open_batch_is_sent_and_threads_that_wait_are_left_alone(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().subscribe(topic, "all").close()
    waiting = broker.client().subscribe(topic, "s")
    ended = threading.Event()

    def wait() -> None:
        with contextlib.suppress(PulsarException):
            waiting.receive()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    producer = broker.client().create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=600_000
    )
    producer.send_async(b"last", lambda *_: None)
    LAST_WORDS.speak()
    again = broker.client().subscribe(topic, "all")
    assert again.receive(20_000).data() == b"last"
    assert not ended.is_set()


def test_an_asyncio_client_leaves_also_when_its_loop_has_stopped(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().subscribe(topic, "s", ConsumerType.Shared).close()
    broker.client().create_producer(topic).send_many(numbers(0, 2))
    loop = asyncio.new_event_loop()

    async def take(client: pulsar_ray.asyncio.Client) -> None:
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
        await consumer.receive()

    client = broker.asyncio_client()
    loop.run_until_complete(take(client))
    LAST_WORDS.speak()
    again = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert sorted((m.data(), m.failures) for m in receive(again, 2)) == [(m, 0) for m in numbers(0, 2)]
    # The loop closes its sockets only while it runs.
    client.shutdown()
    loop.run_until_complete(turns(10))
    loop.close()


@pytest.mark.parametrize("counts", [True, False])
def test_a_policy_says_whether_crashes_count(broker: Broker, counts: bool) -> None:
    topic = broker.topic()
    letters = broker.client().subscribe(topic + "-s-DLQ", "all")
    policy = ConsumerDeadLetterPolicy(1, count_crashes=counts)

    def subscribe(client: Client) -> Consumer:
        return client.subscribe(
            topic, "s", ConsumerType.Shared, receiver_queue_size=1, dead_letter_policy=policy
        )

    subscribe(broker.client()).close()
    broker.client().create_producer(topic).send(b"in hand")
    for crashes in range(2):
        client = broker.client()
        assert subscribe(client).receive(20_000).redelivery_count() == (crashes if counts else 0)
        client.shutdown()
    consumer = subscribe(broker.client())
    if counts:
        assert letters.receive(20_000).data() == b"in hand"
    else:
        assert consumer.receive(20_000).redelivery_count() == 0


def test_what_comes_while_it_is_asked_how_a_process_ended_is_not_laid_to_it(broker: Broker) -> None:
    """The message in hand has failed, and those behind it go to others at once."""
    topic = broker.topic()
    ending = broker.client()
    consumer = ending.subscribe(topic, "s", ConsumerType.Shared)
    producer = broker.client().create_producer(topic)
    producer.send(b"in hand")
    assert consumer.receive(20_000).data() == b"in hand"
    host = broker.cluster.dispatcher_of(topic, "s").host
    may_answer = threading.Event()

    async def crashed(_place: str) -> bool:
        await asyncio.to_thread(may_answer.wait)
        return False

    (session,) = host.sessions
    host.ended_in_order, session.place = crashed, "a node/a worker"
    ending.shutdown()
    wait_until(lambda: session.is_ended, what="the session has ended")
    other = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    for number in numbers(0, 10):
        producer.send(number)
    assert [(m.data(), m.failures) for m in receive(other, 10)] == [(number, 0) for number in numbers(0, 10)]
    may_answer.set()
    again = other.receive(20_000)
    assert (again.data(), again.failures) == (b"in hand", 1)


def test_an_exit_hook_that_closes_behind_the_last_words_waits_for_nothing(broker: Broker) -> None:
    """`atexit.register(client.close)` before the first handle is opened comes behind them."""
    topic = broker.topic()
    client = broker.client()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic, send_timeout_millis=600_000)
    producer.send_many(numbers(0, 2))
    consumer.acknowledge(consumer.receive(20_000))
    LAST_WORDS.speak()
    ended = threading.Event()

    def exit_hook() -> None:
        producer.flush()
        with pytest.raises(PulsarException):
            client.create_producer(topic)
        client.close()
        ended.set()

    threading.Thread(target=exit_hook, daemon=True).start()
    assert ended.wait(10), "nobody answers any more"
    again = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert [message.data() for message in receive(again, 1)] == numbers(1, 2)
