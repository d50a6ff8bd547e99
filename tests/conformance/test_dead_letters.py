"""Messages that fail too often are moved to the dead letter topic, and only these, over every carrier."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.dead_letters import dead_letter_mover, letter_producers
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy, DeadLetterProducerContext
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import InvalidConfiguration, Timeout
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import partition_name
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, send_batch

Quiet = Callable[[Consumer], None]


def failing(client: Client, topic: Any, policy: ConsumerDeadLetterPolicy, **options: Any) -> Consumer:
    """A consumer whose messages come again at once."""
    options = {"consumer_type": ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 0, **options}
    return client.subscribe(topic, "s", dead_letter_policy=policy, **options)


def fail(consumer: Consumer, deliveries: int) -> list[Message]:
    """Receive so many messages and acknowledge each negatively."""
    messages = []
    for _ in range(deliveries):
        message = consumer.receive(WAIT_MS)
        consumer.negative_acknowledge(message)
        messages.append(message)
    return messages


def wait_until_consumed(broker: Broker, topic: str) -> None:
    """Wait until everything is acknowledged."""
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0,
            what="the acknowledgments",
        )


def letters(client: Client, topic: str) -> Consumer:
    """A reader of the dead letter topic of subscription `s`."""
    return client.subscribe(f"{topic}-s-DLQ", "looks", initial_position=EARLIEST)


@pytest.mark.parametrize("consumer_type", [ConsumerType.Shared, ConsumerType.KeyShared])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_message_is_moved_at_the_failure_after_its_last_redelivery(
    broker: Broker, client: Client, limit: int, consumer_type: ConsumerType, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(limit), consumer_type=consumer_type)
    sent = client.create_producer(topic).send(
        b"poison", {"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=7
    )
    counts = [message.redelivery_count() for message in fail(consumer, limit + 1)]
    assert counts == list(range(limit + 1))
    moved = dead.receive(WAIT_MS)
    assert (moved.data(), moved.partition_key(), moved.ordering_key()) == (b"poison", "k", "o")
    assert moved.event_timestamp() == 7
    assert moved.properties() == {
        "a": "b",
        "REAL_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": f"{sent.ledger_id()}:{sent.entry_id()}:-1:-1",
    }
    assert moved.producer_name().startswith(f"{topic}-s-{consumer.consumer_name()}-")
    assert moved.producer_name().endswith("-DLQ")
    assert_quiet(consumer)
    assert_quiet(dead)
    wait_until_consumed(broker, topic)


def nack_by_message(consumer: Consumer) -> int:
    message = consumer.receive(WAIT_MS)
    consumer.negative_acknowledge(message)
    return message.redelivery_count()


def nack_by_id(consumer: Consumer) -> int:
    message = consumer.receive(WAIT_MS)
    consumer.negative_acknowledge(message.message_id())
    return message.redelivery_count()


def nack_by_table(consumer: Consumer) -> int:
    table = consumer.receive_arrow(1, WAIT_MS)
    consumer.negative_acknowledge_arrow(table)
    count: int = table["redelivery_count"][0].as_py()
    return count


@pytest.mark.parametrize("delay_ms", [60_000, 0])
@pytest.mark.parametrize("nack", [nack_by_message, nack_by_id, nack_by_table])
def test_a_failure_counts_although_its_consumer_closes_at_once(
    broker: Broker, client: Client, nack: Callable[[Consumer], int], delay_ms: int
) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    policy = ConsumerDeadLetterPolicy(1)
    consumer = failing(client, topic, policy, negative_ack_redelivery_delay_ms=delay_ms)
    client.create_producer(topic).send(b"poison")
    counts = []
    for _ in range(2):
        counts.append(nack(consumer))
        consumer.close()
        consumer = failing(client, topic, policy, negative_ack_redelivery_delay_ms=delay_ms)
    assert counts == [0, 1]
    assert dead.receive(WAIT_MS).data() == b"poison"


def test_a_tombstone_stays_one(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
    client.create_producer(topic).send(None, partition_key="k")
    fail(consumer, 2)
    assert dead.receive(WAIT_MS).has_null_value()


def test_the_copies_survive_a_crash_and_their_messages_do_not_come_again(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    letters(client, topic).close()
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
    client.create_producer(topic).send_many(numbers(0, 20))
    fail(consumer, 40)
    wait_until_consumed(broker, topic)
    consumer.close()
    broker.restart(kill=True)
    client = broker.client()
    found = [message.data() for message in receive(letters(client, topic), 20)]
    assert sorted(found) == numbers(0, 20)
    assert_quiet(failing(client, topic, ConsumerDeadLetterPolicy(1)))


@pytest.mark.parametrize("index_acks", [False, True])
def test_only_the_failed_message_of_a_batch_is_moved(
    make_broker: Callable[..., Broker], index_acks: bool, assert_quiet: Quiet
) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=index_acks)
    client = broker.client()
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(2), batch_index_ack_enabled=index_acks)
    send_batch(client, topic, numbers(0, 4))
    first = receive(consumer, 4)
    consumer.acknowledge(first[0])
    consumer.negative_acknowledge(first[2])
    for _ in range(2):
        again = receive(consumer, 3)
        assert [message.data() for message in again] == numbers(1, 4)
        consumer.negative_acknowledge(again[1])
    left = receive(consumer, 2)
    assert [message.data() for message in left] == [b"000001", b"000003"]
    moved = dead.receive(WAIT_MS)
    assert moved.data() == b"000002"
    assert moved.properties()["ORIGIN_MESSAGE_ID"].endswith(":-1:2")
    for message in left:
        consumer.acknowledge(message)
    assert_quiet(dead)
    assert_quiet(consumer)
    wait_until_consumed(broker, topic)


def test_partitions_share_one_dead_letter_topic(broker: Broker, client: Client) -> None:
    topic = broker.topic(3)
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
    producer = client.create_producer(topic)
    for number in range(9):
        producer.send(b"%d" % number)
    fail(consumer, 18)
    moved = receive(dead, 9)
    assert sorted(message.data() for message in moved) == [b"%d" % number for number in range(9)]
    assert {message.properties()["REAL_TOPIC"] for message in moved} == {topic}
    partitions = {message.properties()["ORIGIN_MESSAGE_ID"].split(":")[2] for message in moved}
    assert partitions == {"0", "1", "2"}


def test_topics_of_one_consumer_have_dead_letter_topics_of_their_own(broker: Broker, client: Client) -> None:
    topics = [broker.topic(), broker.topic()]
    dead = [letters(client, topic) for topic in topics]
    consumer = failing(client, topics, ConsumerDeadLetterPolicy(1))
    for topic in topics:
        client.create_producer(topic).send(topic.encode())
    fail(consumer, 4)
    assert [consumer.receive(WAIT_MS).data() for consumer in dead] == [topic.encode() for topic in topics]


def test_nothing_that_failed_too_often_is_in_a_table_or_a_batch(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
    client.create_producer(topic).send_many(numbers(0, 10))
    seen: list[bytes] = []
    while len(seen) < 15:  # five poison messages come twice
        table = consumer.receive_arrow(timeout_millis=WAIT_MS)
        seen += table.column("value").to_pylist()
        poison = [int(value) % 2 == 1 for value in table.column("value").to_pylist()]
        consumer.negative_acknowledge_arrow(table.filter(poison))
        consumer.acknowledge_arrow(table.filter([not is_poison for is_poison in poison]))
    assert sorted(message.data() for message in receive(dead, 5)) == [b"%06d" % n for n in (1, 3, 5, 7, 9)]
    with pytest.raises(Timeout):
        consumer.receive_arrow(timeout_millis=100)
    assert len(consumer.batch_receive()) == 0


def test_a_listener_is_not_called_with_what_failed_too_often(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    calls: list[int] = []

    def listen(consumer: Consumer, message: Message) -> None:
        calls.append(message.redelivery_count())
        consumer.negative_acknowledge(message)

    failing(client, topic, ConsumerDeadLetterPolicy(2), message_listener=listen)
    client.create_producer(topic).send(b"poison")
    assert dead.receive(WAIT_MS).data() == b"poison"
    assert calls == [0, 1, 2]


def test_poison_behind_messages_that_nobody_takes_is_moved_once_they_are_taken(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1), negative_ack_redelivery_delay_ms=200)
    producer = client.create_producer(topic)
    producer.send(b"poison")
    fail(consumer, 2)
    send_batch(client, topic, numbers(0, 3))
    assert consumer.receive(WAIT_MS).data() == b"000000"
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgOutCounter"] >= 6,
            what="the poison behind the batch",
        )
    assert_quiet(dead)
    assert [message.data() for message in receive(consumer, 2)] == numbers(1, 3)
    assert dead.receive(WAIT_MS).data() == b"poison"


def test_an_initial_subscription_keeps_what_is_moved(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    policy = ConsumerDeadLetterPolicy(1, f"{topic}-dead", "keeps")
    consumer = failing(client, topic, policy)
    client.create_producer(topic).send(b"poison")
    fail(consumer, 2)
    wait_until_consumed(broker, topic)
    keeper = client.subscribe(
        f"{topic}-dead", "keeps", ConsumerType.Shared, initial_position=InitialPosition.Latest
    )
    assert keeper.receive(WAIT_MS).data() == b"poison"


def test_a_customizer_changes_the_producer(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    contexts: list[DeadLetterProducerContext] = []

    def customize(context: DeadLetterProducerContext, arguments: dict[str, Any]) -> None:
        contexts.append(context)
        arguments["producer_name"] = "mover"

    dead = letters(client, topic)
    policy = ConsumerDeadLetterPolicy(1, dead_letter_producer_customizer=customize)
    consumer = failing(client, topic, policy, consumer_name="c")
    client.create_producer(topic).send(b"poison")
    fail(consumer, 2)
    assert dead.receive(WAIT_MS).producer_name() == "mover"
    assert contexts == [DeadLetterProducerContext(f"{topic}-s-DLQ", topic, "s", "c")]


@pytest.mark.parametrize("consumer_type", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_in_order_nothing_is_moved_which_is_logged(
    broker: Broker, client: Client, consumer_type: ConsumerType, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    with caplog.at_level(logging.WARNING):
        consumer = failing(client, topic, ConsumerDeadLetterPolicy(1), consumer_type=consumer_type)
    assert "dead_letter_policy has no effect" in caplog.text
    client.create_producer(topic).send(b"x")
    assert [message.redelivery_count() for message in fail(consumer, 5)] == [0, 1, 2, 3, 4]


def test_a_topic_cannot_be_its_own_dead_letter_topic(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    for wrong in (topic, topic.removeprefix("persistent://public/default/")):
        with pytest.raises(InvalidConfiguration, match="would circle"):
            failing(client, topic, ConsumerDeadLetterPolicy(1, wrong))


def test_a_message_that_cannot_be_moved_stays_and_stats_and_log_say_why(
    make_broker: Callable[..., Broker], caplog: pytest.LogCaptureFixture
) -> None:
    broker = make_broker(allow_auto_topic_creation=False)
    client = broker.client()
    topic = broker.topic()
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
    producer = client.create_producer(topic)
    producer.send(b"poison")
    with broker.admin() as admin, caplog.at_level(logging.WARNING):

        def stats() -> dict[str, Any]:
            found: dict[str, Any] = admin.topics.stats(topic)["subscriptions"]["s"]
            return found

        fail(consumer, 2)
        wait_until(lambda: "TopicNotFound" in stats()["deadLetterError"], what="the reason in the stats")
        assert f"{topic}-s-DLQ" in stats()["deadLetterError"]
        assert caplog.text.count("failed too often stay there") == 1
        assert stats()["msgBacklog"] == 1
        producer.send(b"fine")
        assert consumer.receive(WAIT_MS).data() == b"fine", "others flow on"
        admin.topics.create_topic(f"{topic}-s-DLQ")
        dead = letters(client, topic)
        assert dead.receive(WAIT_MS).data() == b"poison"
        wait_until(lambda: stats()["deadLetterError"] == "", what="the end of the error in the stats")
        assert stats()["deadLetteredMessages"] == 1


@pytest.mark.usefixtures("carriers_are_kept")
def test_the_number_of_dead_letters_outlives_consumers_and_connections(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    producer = client.create_producer(topic)
    with broker.admin() as admin:

        def wait_for(count: int) -> None:
            wait_until(
                lambda: admin.topics.stats(topic)["subscriptions"]["s"]["deadLetteredMessages"] == count,
                what=f"{count} dead letters in the stats",
            )

        for turn in range(2):
            consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
            producer.send_many(numbers(0, 3))
            fail(consumer, 6)
            receive(dead, 3)
            # The last of them are reported as it leaves.
            consumer.close()
            wait_for(3 * turn + 3)
        consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
        producer.send(b"x")
        fail(consumer, 2)
        wait_for(7)
        broker.cluster.cut_lanes(f"{topic} -> s")
        producer.send(b"fine")
        assert consumer.receive(WAIT_MS).data() == b"fine"
        wait_for(7)


def test_an_initial_subscription_that_may_not_be_created_keeps_messages_where_they_are(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(allow_auto_subscription_creation=False)
    client = broker.client()
    topic = broker.topic()
    with broker.admin() as admin:
        admin.topics.create_subscription(topic, "s")
        policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="keeps")
        consumer = failing(client, topic, policy)
        client.create_producer(topic).send(b"poison")
        fail(consumer, 2)
        wait_until(
            lambda: (
                "SubscriptionNotFound" in admin.topics.stats(topic)["subscriptions"]["s"]["deadLetterError"]
            ),
            what="the reason",
        )
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 1


@pytest.mark.parametrize("consumer_type", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_what_was_moved_out_of_a_batch_does_not_come_again_though_the_rest_does(
    broker: Broker, client: Client, consumer_type: ConsumerType
) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1), consumer_type=consumer_type)
    send_batch(client, topic, numbers(0, 4))
    # Nothing else of the batch is acknowledged.
    failed = 0
    while failed < 2:
        message = consumer.receive(WAIT_MS)
        if message.data() == b"000002":
            consumer.negative_acknowledge(message)
            failed += 1
    # It is moved once those before it are taken.
    receive(consumer, 3)
    assert dead.receive(WAIT_MS).data() == b"000002"
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type)
    left = {message.data() for message in receive(consumer, 3)}
    assert left == {b"000000", b"000001", b"000003"}
    consumer.close()
    broker.restart(kill=True)
    consumer = broker.client().subscribe(topic, "s", consumer_type)
    again = receive(consumer, 3)
    assert {message.data() for message in again} == left
    for message in again:
        consumer.acknowledge(message)
    wait_until_consumed(broker, topic)


def test_a_close_amid_the_moves_leaves_each_message_in_one_place(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
    sent = [b"%d" % number for number in range(200)]
    send_batch(client, topic, sent)
    fail(consumer, 400)
    consumer.close()
    back: set[bytes] = set()
    moved: list[bytes] = []
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1000))
    while len(back) + len(set(moved)) < len(sent):
        for one, found in ((consumer, back.add), (dead, moved.append)):
            while True:
                try:
                    message = one.receive(200)
                except Timeout:
                    break
                found(message.data())
                one.acknowledge(message)
    assert_quiet(dead)
    assert not back & set(moved)
    assert len(moved) == len(set(moved)), "none is copied twice"


def in_one_piece(_: DeadLetterProducerContext, arguments: dict[str, Any]) -> None:
    arguments["chunking_enabled"] = False


def test_a_message_that_is_too_large_keeps_no_other_from_being_moved(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_mover, "TOO_LARGE_S", 0.5)
    topic = broker.topic()
    with broker.admin() as admin:
        dead = letters(client, topic)
        policy = ConsumerDeadLetterPolicy(1, dead_letter_producer_customizer=in_one_piece)
        consumer = failing(client, topic, policy)
        producer = client.create_producer(topic)
        producer.send_many([b"a", b"x" * 5000, b"b"])
        admin.topics.policies.set(f"{topic}-s-DLQ", "max_message_size", 2000)
        fail(consumer, 6)
        assert sorted(message.data() for message in receive(dead, 2)) == [b"a", b"b"]
        wait_until(
            lambda: "MessageTooBig" in admin.topics.stats(topic)["subscriptions"]["s"]["deadLetterError"],
            what="the reason",
        )
        admin.topics.policies.remove(f"{topic}-s-DLQ", "max_message_size")
        assert dead.receive(WAIT_MS).data() == b"x" * 5000


def test_what_a_refusal_kept_is_moved_soon_after_its_end(broker: Broker, client: Client) -> None:
    refused_topic, other = broker.topic(), broker.topic()
    dead = {topic: letters(client, topic) for topic in (refused_topic, other)}
    tries: list[float] = []

    def customize(context: DeadLetterProducerContext, arguments: dict[str, Any]) -> None:
        if context.input_topic_name == refused_topic:
            tries.append(time.monotonic())
            arguments["producer_name"] = "taken"

    holder = client.create_producer(f"{refused_topic}-s-DLQ", producer_name="taken")
    policy = ConsumerDeadLetterPolicy(1, dead_letter_producer_customizer=customize)
    # A failure's own delay is none of a letter's.
    consumer = failing(client, [refused_topic, other], policy)
    client.create_producer(refused_topic).send_many(numbers(0, 50))
    fail(consumer, 100)

    def stats(topic: str) -> dict[str, Any]:
        found: dict[str, Any] = admin.topics.stats(topic)["subscriptions"]["s"]
        return found

    with broker.admin() as admin:
        wait_until(lambda: "ProducerBusy" in stats(refused_topic)["deadLetterError"], what="the reason")
        client.create_producer(other).send(b"goes")
        fail(consumer, 2)
        assert dead[other].receive(WAIT_MS).data() == b"goes"
        wait_until(lambda: stats(other)["msgBacklog"] == 0, what="the move")
        assert stats(other)["deadLetterError"] == ""
        assert "ProducerBusy" in stats(refused_topic)["deadLetterError"]
        wait_until(lambda: len(tries) >= 4, what="four tries")
        assert tries[3] - tries[0] >= 0.7, "the tries come later and later, and are one for all letters"
        holder.close()
        found = [message.data() for message in receive(dead[refused_topic], 50)]
        assert sorted(found) == numbers(0, 50)
        wait_until(lambda: stats(refused_topic)["deadLetterError"] == "", what="the end of the error")


@pytest.mark.parametrize("enable_retry", [False, True], ids=["moved", "retried"])
def test_the_dead_letter_topic_sleeps_behind_a_letter_and_wakes_for_the_next(
    broker: Broker, client: Client, enable_retry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_producers, "IDLE_S", 0.2)
    topic = broker.topic()
    dead = letters(client, topic)
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1), enable_retry=enable_retry)
    producer = client.create_producer(topic)
    partition = partition_name(f"{topic}-s-DLQ")

    def sleeps() -> bool:
        broker.cluster.put_to_sleep(f"{topic}-s-DLQ", with_clients=True)
        return partition not in broker.cluster.addresses

    for value in (b"first", b"second"):
        producer.send(value)
        for _ in range(2):
            message = consumer.receive(WAIT_MS)
            if enable_retry:
                consumer.reconsume_later(message, timedelta(0))
            else:
                consumer.negative_acknowledge(message)
        letter = dead.receive(WAIT_MS)
        assert letter.data() == value
        dead.acknowledge(letter)
        wait_until(sleeps, what="the dead letter topic sleeps, though its consumers are open")


def test_a_dead_letter_topic_that_keeps_nothing_is_warned_of_once(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    consumer = failing(client, topic, ConsumerDeadLetterPolicy(1))
    client.create_producer(topic).send_many(numbers(0, 3))
    with caplog.at_level(logging.WARNING):
        fail(consumer, 6)
        wait_until_consumed(broker, topic)
        wait_until(lambda: "initial_subscription_name" in caplog.text, what="the warning")
    assert caplog.text.count("initial_subscription_name") == 1


def test_an_asyncio_consumer_moves_messages(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    dead = letters(client, topic)

    async def run() -> None:
        async with broker.asyncio_client() as on_loop:
            consumer = await on_loop.subscribe(
                topic,
                "s",
                ConsumerType.Shared,
                negative_ack_redelivery_delay_ms=0,
                dead_letter_policy=ConsumerDeadLetterPolicy(1),
            )
            await (await on_loop.create_producer(topic)).send(b"poison")
            for _ in range(2):
                await consumer.negative_acknowledge(await consumer.receive(WAIT_MS))
            received = await in_thread(dead.receive, WAIT_MS)
            assert received.data() == b"poison"

    asyncio.run(run())


def test_a_failure_counts_although_its_asyncio_consumer_closes_at_once(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    dead = letters(client, topic)

    async def run() -> list[int]:
        counts: list[int] = []
        async with broker.asyncio_client() as on_loop:
            for _ in range(3):
                consumer = await on_loop.subscribe(
                    topic, "s", ConsumerType.Shared, dead_letter_policy=ConsumerDeadLetterPolicy(1)
                )
                if not counts:
                    await (await on_loop.create_producer(topic)).send(b"poison")
                if len(counts) == 2:
                    break
                message = await consumer.receive(WAIT_MS)
                counts.append(message.redelivery_count())
                await consumer.negative_acknowledge(message)
                await consumer.close()
            assert (await in_thread(dead.receive, WAIT_MS)).data() == b"poison"
        return counts

    assert asyncio.run(run()) == [0, 1]
