"""Dead letters are sent back to where they came from, over every carrier."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import (
    InvalidConfiguration,
    MessageTooBig,
    NotAllowedError,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, send_batch

Quiet = Callable[[Consumer], None]


def dead_letters(broker: Broker, client: Client, count: int) -> tuple[str, str]:
    """A topic and its dead letter topic, with so many letters for the subscription `keeps`."""
    topic = broker.topic()
    policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="keeps")
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=0
    )
    producer = client.create_producer(topic)
    for value in numbers(0, count):
        producer.send(value, {"of": "mine"}, partition_key="k")
    for _ in range(2 * count):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0, what="the moves"
        )
    consumer.close()
    return topic, f"{topic}-s-DLQ"


def backlog(broker: Broker, topic: str, subscription: str) -> int:
    with broker.admin() as admin:
        count: int = admin.topics.stats(topic)["subscriptions"][subscription]["msgBacklog"]
    return count


def test_all_letters_go_back_as_they_were(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic, letters = dead_letters(broker, client, 5)
    with broker.admin() as admin:
        assert admin.topics.redrive(letters, dry_run=True) == {topic: 5}
        assert backlog(broker, letters, "keeps") == 5
        assert admin.topics.redrive(letters) == {topic: 5}
        wait_until(lambda: backlog(broker, letters, "keeps") == 0, what="the acknowledgments")
        assert admin.topics.redrive(letters) == {}
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    back = receive(consumer, 5)
    assert [message.data() for message in back] == numbers(0, 5)
    assert {message.partition_key() for message in back} == {"k"}
    assert [message.properties() for message in back] == [{"of": "mine"}] * 5
    assert_quiet(consumer)


def test_some_go_to_another_topic(broker: Broker, client: Client) -> None:
    topic, letters = dead_letters(broker, client, 5)
    other = broker.topic()
    looking = client.subscribe(other, "s")
    with broker.admin() as admin:
        assert admin.topics.redrive(letters, other, limit=2, dry_run=True) == {other: 2}
        assert admin.topics.redrive(letters, other, limit=2) == {other: 2}
        assert admin.topics.redrive(letters, subscription="keeps") == {topic: 3}
    assert [message.data() for message in receive(looking, 2)] == numbers(0, 2)


def test_messages_of_batches_and_of_no_known_origin(broker: Broker, client: Client) -> None:
    letters, topic = broker.topic(), broker.topic()
    client.subscribe(letters, "keeps").close()
    looking = client.subscribe(topic, "s")
    send_batch(client, letters, numbers(0, 4))
    client.create_producer(letters).send(b"x", {"REAL_TOPIC": topic})
    with broker.admin() as admin:
        assert admin.topics.redrive(letters) == {"": 4, topic: 1}
        assert looking.receive(WAIT_MS).data() == b"x"
        assert admin.topics.redrive(letters, topic) == {topic: 4}
    assert [message.data() for message in receive(looking, 4)] == numbers(0, 4)


def test_letters_with_wrong_targets_keep_no_other_from_going(broker: Broker, client: Client) -> None:
    letters, topic = broker.topic(), broker.topic()
    client.subscribe(letters, "keeps").close()
    looking = client.subscribe(topic, "s")
    producer = client.create_producer(letters)
    none = "persistent://public/default/none"
    for target in ("persistent://bad", letters, none, topic, topic):
        producer.send(b"x", {"REAL_TOPIC": target})
    with broker.admin() as admin:
        assert admin.topics.redrive(letters, dry_run=True) == {"": 2, none: 1, topic: 2}
        assert admin.topics.redrive(letters, limit=2, dry_run=True) == {"": 2, none: 1, topic: 1}
        with pytest.raises(TopicNotFound, match=f"{none} stay .* others went: 1 to {topic}$"):
            admin.topics.redrive(letters, limit=1)
        with pytest.raises(TopicNotFound, match=f"others went: 1 to {topic}$"):
            admin.topics.redrive(letters)
    assert [message.data() for message in receive(looking, 2)] == [b"x", b"x"]
    wait_until(lambda: backlog(broker, letters, "keeps") == 3, what="the acknowledgments")


def test_a_letter_that_cannot_go_holds_up_no_other_and_is_named(broker: Broker, client: Client) -> None:
    letters, topic = broker.topic(), broker.topic()
    client.subscribe(letters, "keeps").close()
    looking = client.subscribe(topic, "s")
    sent = numbers(0, 1200)
    producer = client.create_producer(letters)
    to_topic = {"REAL_TOPIC": topic}
    producer.send_many(sent[:600], properties=[to_topic] * 600)
    stays = producer.send(b"stays", {**to_topic, "long": "x" * 70_000})
    producer.send_many(sent[600:], properties=[to_topic] * 600)
    named = rf"{stays.ledger_id()}:{stays.entry_id()}:-1:-1 for {topic}; 1 letters"
    with broker.admin() as admin:
        admin.topics.policies.set(topic, "max_message_size", 2000)
        with pytest.raises(MessageTooBig, match=rf"{named}.* others went: 1200 to {topic}$"):
            admin.topics.redrive(letters)
        wait_until(lambda: backlog(broker, letters, "keeps") == 1, what="the acknowledgments")
        admin.topics.policies.remove(topic, "max_message_size")
        assert admin.topics.redrive(letters) == {topic: 1}
    came = [looking.receive(WAIT_MS).data() for _ in range(1201)]
    assert sorted(came) == [*sent, b"stays"], "none went twice"


def test_a_part_of_a_batch_that_went_does_not_go_again(broker: Broker, client: Client) -> None:
    letters, topic = broker.topic(), broker.topic()
    client.subscribe(letters, "keeps").close()
    looking = client.subscribe(topic, "s")
    send_batch(client, letters, numbers(0, 5))
    with broker.admin() as admin:
        assert admin.topics.redrive(letters, topic, limit=2) == {topic: 2}
        assert admin.topics.redrive(letters, topic) == {topic: 3}
    assert sorted(message.data() for message in receive(looking, 5)) == numbers(0, 5)
    wait_until(lambda: backlog(broker, letters, "keeps") == 0, what="the acknowledgments")


def test_what_went_in_chunks_goes_back_in_chunks(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    letters = f"{topic}-s-DLQ"
    with broker.admin() as admin:
        admin.topics.create_topic(letters)
        for each in (topic, letters):
            admin.topics.policies.set(each, "max_message_size", 20_000)
        policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="keeps")
        consumer = client.subscribe(
            topic, "s", ConsumerType.Shared, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=0
        )
        sent: list[bytes | None] = [b"small", bytes(range(250)) * 300, None, b"", b"x" * 20_000, b"last"]
        producer = client.create_producer(topic, chunking_enabled=True)
        for value in sent:
            producer.send(value, {"of": "mine"}, partition_key="k", ordering_key="o", event_timestamp=7)
        for _ in range(2 * len(sent)):
            consumer.negative_acknowledge(consumer.receive(WAIT_MS))
        wait_until(lambda: backlog(broker, topic, "s") == 0, what="the moves")
        assert admin.topics.redrive(letters) == {topic: len(sent)}
    back = receive(consumer, len(sent))
    found = [None if message.has_null_value() else message.data() for message in back]
    assert sorted(found, key=repr) == sorted(sent, key=repr)
    assert {(m.partition_key(), m.ordering_key(), m.event_timestamp()) for m in back} == {("k", "o", 7)}
    assert [message.properties() for message in back] == [{"of": "mine"}] * len(sent)
    assert_quiet(consumer)


def test_a_message_in_chunks_counts_once(broker: Broker, client: Client) -> None:
    letters, topic = broker.topic(), broker.topic()
    client.subscribe(letters, "keeps").close()
    client.subscribe(topic, "s").close()
    producer = client.create_producer(letters, chunking_enabled=True, chunk_max_message_size=10_000)
    producer.send(bytes(35_000), {"REAL_TOPIC": topic})
    assert backlog(broker, letters, "keeps") > 1
    with broker.admin() as admin:
        assert admin.topics.redrive(letters, dry_run=True) == {topic: 1}
        assert admin.topics.redrive(letters) == {topic: 1}


def test_nothing_is_sent_where_it_would_be_lost(broker: Broker, client: Client) -> None:
    topic, letters = dead_letters(broker, client, 1)
    empty = broker.topic()
    with broker.admin() as admin:
        for wrong, error in (
            (letters, InvalidConfiguration),
            (empty, NotAllowedError),
            ("none", TopicNotFound),
        ):
            with pytest.raises(error):
                admin.topics.redrive(letters, wrong)
        with pytest.raises(SubscriptionNotFound):
            admin.topics.redrive(letters, subscription="other")
        with pytest.raises(SubscriptionNotFound, match="create one"):
            admin.topics.redrive(empty)
        client.subscribe(letters, "second", initial_position=EARLIEST).close()
        with pytest.raises(InvalidConfiguration, match="keeps, second"):
            admin.topics.redrive(letters)
        assert admin.topics.redrive(letters, subscription="second") == {topic: 1}
    assert backlog(broker, letters, "keeps") == 1


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": "x"}, {"to": 5}, {"dry_run": 1}, {"subscription": 3}]
)
def test_wrong_arguments(broker: Broker, wrong: dict[str, object]) -> None:
    with broker.admin() as admin, pytest.raises(ValueError, match=next(iter(wrong))):
        admin.topics.redrive(broker.topic(), **wrong)  # type: ignore[arg-type]
