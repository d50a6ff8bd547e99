"""Messages sent to the retry letter topic come again, and in the end go to the dead letter topic."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import InvalidConfiguration, OperationNotSupported
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, send_batch

Quiet = Callable[[Consumer], None]
AT_ONCE = timedelta(0)


def retrying(client: Client, topic: Any, limit: int = 2, **options: Any) -> Consumer:
    policy = ConsumerDeadLetterPolicy(limit)
    options = {"consumer_type": ConsumerType.Shared, **options}
    return client.subscribe(topic, "s", enable_retry=True, dead_letter_policy=policy, **options)


def test_a_message_is_retried_until_it_is_moved(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    dead = client.subscribe(f"{topic}-s-DLQ", "looks", initial_position=EARLIEST)
    consumer = retrying(client, topic)
    sent = client.create_producer(topic).send(
        b"x", {"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=9
    )
    origin = f"{sent.ledger_id()}:{sent.entry_id()}:-1:-1"
    for times in range(3):
        message = consumer.receive(WAIT_MS)
        assert (message.data(), message.partition_key(), message.ordering_key()) == (b"x", "k", "o")
        assert (message.event_timestamp(), message.redelivery_count()) == (9, 0)
        if times:
            assert message.topic_name() == f"{topic}-s-RETRY"
            assert message.properties() == {
                "a": "b",
                "why": str(times - 1),
                "REAL_TOPIC": topic,
                "ORIGIN_MESSAGE_ID": origin,
                "RECONSUMETIMES": str(times),
                "DELAY_TIME": "0",
            }
        given = {"why": str(times), "REAL_TOPIC": "mine", "ORIGIN_MESSAGE_ID": "mine"}
        consumer.reconsume_later(message, AT_ONCE, given)
        assert broker.unacked(topic, "s") == [0], "acknowledged when it returns"
    moved = dead.receive(WAIT_MS)
    assert moved.data() == b"x"
    assert moved.properties()["RECONSUMETIMES"] == "3"
    assert moved.properties()["REAL_TOPIC"] == topic
    assert_quiet(consumer)
    assert_quiet(dead)


def test_only_the_one_message_of_a_batch_is_retried(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = retrying(client, topic)
    send_batch(client, topic, [b"a", b"b", b"c"])
    for _ in range(3):
        message = consumer.receive(WAIT_MS)
        if message.data() == b"b":
            consumer.reconsume_later(message, AT_ONCE)
        else:
            consumer.acknowledge(message)
    again = consumer.receive(WAIT_MS)
    assert again.data() == b"b"
    assert again.properties()["ORIGIN_MESSAGE_ID"].endswith(":-1:1")
    assert_quiet(consumer)


def test_partitions_and_topics_of_a_pattern_have_their_own(broker: Broker, client: Client) -> None:
    topic = broker.topic(2)
    pattern = re.compile(f"{topic}.*")
    consumer = retrying(client, pattern)
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number)
    retried = set()
    for _ in range(8):
        message = consumer.receive(WAIT_MS)
        if message.topic_name() == f"{topic}-s-RETRY":
            retried.add(message.data())
            consumer.acknowledge(message)
        else:
            consumer.reconsume_later(message, AT_ONCE)
    assert retried == {b"0", b"1", b"2", b"3"}


def test_what_waits_to_be_retried_is_there_after_a_crash(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = retrying(client, topic)
    client.create_producer(topic).send(b"x")
    consumer.reconsume_later(consumer.receive(WAIT_MS), AT_ONCE)
    consumer.close()
    broker.restart(kill=True)
    message = retrying(broker.client(), topic).receive(WAIT_MS)
    assert (message.data(), message.properties()["RECONSUMETIMES"]) == (b"x", "1")


def test_awaited_retries_go_on_together(broker: Broker) -> None:
    topic = broker.topic()

    async def run() -> list[str]:
        async with broker.asyncio_client() as client:
            consumer = await client.subscribe(
                topic,
                "s",
                ConsumerType.Shared,
                enable_retry=True,
                dead_letter_policy=ConsumerDeadLetterPolicy(1),
            )
            producer = await client.create_producer(topic)
            await producer.send_many([b"%d" % number for number in range(50)])
            messages = [await consumer.receive(WAIT_MS) for _ in range(50)]
            await asyncio.gather(*(consumer.reconsume_later(message, AT_ONCE) for message in messages))
            again = [await consumer.receive(WAIT_MS) for _ in range(50)]
            return sorted(message.properties()["RECONSUMETIMES"] for message in again)

    assert asyncio.run(run()) == ["1"] * 50


def test_retrying_needs_to_be_enabled(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x")
    message = consumer.receive(WAIT_MS)
    with pytest.raises(OperationNotSupported, match="enable_retry=True"):
        consumer.reconsume_later(message, AT_ONCE)


@pytest.mark.parametrize("consumer_type", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_retrying_in_order_is_refused(broker: Broker, client: Client, consumer_type: ConsumerType) -> None:
    with pytest.raises(InvalidConfiguration, match="enable_retry"):
        retrying(client, broker.topic(), consumer_type=consumer_type)


@pytest.mark.parametrize(
    ("delay", "properties", "complaint"),
    [(5, None, "delay"), (AT_ONCE, {"a": 1}, "properties"), (AT_ONCE, "text", "properties")],
)
def test_wrong_arguments_leave_the_message_as_it_is(
    broker: Broker, client: Client, delay: Any, properties: Any, complaint: str
) -> None:
    topic = broker.topic()
    consumer = retrying(client, topic)
    client.create_producer(topic).send(b"x")
    message = consumer.receive(WAIT_MS)
    with pytest.raises(ValueError, match=complaint):
        consumer.reconsume_later(message, delay, properties)
    with pytest.raises(ValueError, match="received Message"):
        consumer.reconsume_later(message.message_id(), AT_ONCE)  # type: ignore[arg-type]
    consumer.redeliver_unacknowledged_messages()
    wait_until(lambda: consumer.receive(WAIT_MS).data() == b"x", what="the message")


def test_a_message_whose_copy_is_refused_stays(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    policy = ConsumerDeadLetterPolicy(
        2, retry_letter_producer_customizer=lambda _, arguments: arguments.update(batching_max_messages=-5)
    )
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, enable_retry=True, dead_letter_policy=policy)
    client.create_producer(topic).send(b"x")
    message = consumer.receive(WAIT_MS)
    with pytest.raises(ValueError, match="batching_max_messages"):
        consumer.reconsume_later(message, AT_ONCE)
    assert broker.unacked(topic, "s") == [1]


def test_a_delayed_retry_does_not_come_early(make_broker: Callable[..., Broker], assert_quiet: Quiet) -> None:
    broker = make_broker(is_delayed_delivery_deliver_at_time_strict=True)
    client = broker.client()
    topic = broker.topic()
    consumer = retrying(client, topic)
    client.create_producer(topic).send(b"x")
    began_s = time.monotonic()
    consumer.reconsume_later(consumer.receive(WAIT_MS), timedelta(seconds=1))
    again = consumer.receive(WAIT_MS)
    assert time.monotonic() - began_s >= 1.0
    assert again.properties()["DELAY_TIME"] == "1000"
    consumer.acknowledge(again)
    assert_quiet(consumer)


OWN = {"REAL_TOPIC": "mine", "ORIGIN_MESSAGE_ID": "1:1:1:1", "RECONSUMETIMES": "77", "DELAY_TIME": "x"}
OWN_TOO = {
    **OWN,
    "UNREADABLE_BLOCK": "z",
    "USER_REAL_TOPIC": "a",
    "USER_USER_DELAY_TIME": "b",
    "USER_else": "c",
    "a": "b",
}


@pytest.mark.parametrize("own", [OWN, OWN_TOO], ids=["same_names", "names_like_kept_ones"])
def test_properties_that_a_publisher_sets_decide_nothing_and_come_back(
    broker: Broker, client: Client, own: dict[str, str]
) -> None:
    topic = broker.topic()
    dead = client.subscribe(f"{topic}-s-DLQ", "keeps", ConsumerType.Shared, initial_position=EARLIEST)
    consumer = retrying(client, topic, negative_ack_redelivery_delay_ms=0)
    client.create_producer(topic).send(b"x", own)
    handed_out = 0
    for times in range(1, 4):
        message = consumer.receive(WAIT_MS)
        handed_out += 1
        consumer.reconsume_later(message, AT_ONCE)
        if times == 1:
            assert message.properties() == own
            origin = message.message_id()
    letter = dead.receive(WAIT_MS)
    assert handed_out == 3
    expected = {
        "REAL_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": f"{origin.ledger_id()}:{origin.entry_id()}:-1:-1",
        "RECONSUMETIMES": "3",
        "DELAY_TIME": "0",
    }
    assert {name: letter.properties()[name] for name in expected} == expected
    dead.close()
    with broker.admin() as admin:
        assert admin.topics.redrive(f"{topic}-s-DLQ") == {topic: 1}
    assert consumer.receive(WAIT_MS).properties() == own


def test_what_is_moved_for_its_failures_has_the_system_s_properties_and_gives_back_its_own(
    broker: Broker, client: Client
) -> None:
    topic, other = broker.topic(), broker.topic()
    client.subscribe(f"{topic}-s-DLQ", "keeps", initial_position=EARLIEST).close()
    elsewhere = client.subscribe(other, "s")
    consumer = retrying(client, topic, 1, negative_ack_redelivery_delay_ms=0)
    client.create_producer(topic).send(b"x", {"REAL_TOPIC": other})
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    with broker.admin() as admin:
        wait_until(lambda: admin.topics.stats(f"{topic}-s-DLQ")["msgInCounter"] == 1, what="the move")
        assert admin.topics.redrive(f"{topic}-s-DLQ") == {topic: 1}
    assert consumer.receive(WAIT_MS).properties() == {"REAL_TOPIC": other}
    assert not elsewhere.has_message_available()


def test_a_letter_of_a_letter_goes_back_step_by_step(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first, second = f"{topic}-s-DLQ", f"{topic}-s-DLQ-s-DLQ"
    for dead in (first, second):
        client.subscribe(dead, "keeps", initial_position=EARLIEST).close()
    consumers = {
        name: client.subscribe(
            name,
            "s",
            ConsumerType.Shared,
            initial_position=EARLIEST,
            negative_ack_redelivery_delay_ms=0,
            dead_letter_policy=ConsumerDeadLetterPolicy(1),
        )
        for name in (topic, first)
    }
    client.create_producer(topic).send(b"x", {"REAL_TOPIC": "mine"})
    for consumer in consumers.values():
        for _ in range(2):
            consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    with broker.admin() as admin:
        wait_until(lambda: admin.topics.stats(second)["msgInCounter"] == 1, what="the second move")
        assert admin.topics.redrive(second) == {first: 1}
        again = consumers[first].receive(WAIT_MS)
        assert again.properties()["REAL_TOPIC"] == topic
        # The letter itself, and its copy.
        assert admin.topics.redrive(first, subscription="keeps") == {topic: 2}
    assert consumers[topic].receive(WAIT_MS).properties() == {"REAL_TOPIC": "mine"}
