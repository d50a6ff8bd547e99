"""Parts of batches that a consumer acknowledges without holding them, over every carrier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, send_batch, values

Quiet = Callable[[Consumer], None]
SHARED = ConsumerType.Shared


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(acknowledgment_at_batch_index_level_enabled=True)


@pytest.fixture
def topic(broker: Broker, client: Client) -> str:
    """With one batch of ten, and a subscription that has all of it."""
    topic = broker.topic()
    client.subscribe(topic, "s", SHARED).close()
    producer = client.create_producer(topic, batching_enabled=True)
    producer.send_many(numbers(0, 10))
    assert len(broker.stored_blocks(topic)) == 1
    return topic


def subscribe(client: Client, topic: str, *, index_acks: bool = True) -> Consumer:
    """One that is given something if nobody else takes it."""
    return client.subscribe(
        topic,
        "s",
        SHARED,
        batch_index_ack_enabled=index_acks,
        ack_receipt_enabled=True,
        priority_level=1,
    )


def received(consumer: Consumer, rows: int) -> pa.Table:
    tables = [consumer.receive_arrow(rows, WAIT_MS)]
    while (missing := rows - sum(table.num_rows for table in tables)) > 0:
        tables.append(consumer.receive_arrow(missing, WAIT_MS))
    return pa.concat_tables(tables)


def holder_of_all(broker: Broker, topic: str, free: Consumer | None = None) -> Consumer:
    """A consumer that has all there is, so that no other one holds it; it is asked before the others."""
    holder = broker.client().subscribe(topic, "s", SHARED, receiver_queue_size=20)

    def is_given_all() -> bool:
        if free is not None and not holder.core.has_received():
            free.redeliver_unacknowledged_messages()  # again, if it came back while the holder was cut off
        return holder.core.has_received()

    wait_until(is_given_all, what="the holder has all")
    assert receive(holder, 10)
    return holder


def test_rows_of_a_table_of_another_consumer(broker: Broker, client: Client, topic: str) -> None:
    first = subscribe(client, topic)
    table = received(first, 10)
    first.close()
    holder = holder_of_all(broker, topic)
    second = subscribe(client, topic)
    second.acknowledge_arrow(table.slice(0, 3))
    holder.close()
    assert values(second, 7) == numbers(3, 10)


@pytest.mark.parametrize("index_acks", [False, True])
def test_rows_whose_batch_was_given_back(
    broker: Broker, client: Client, topic: str, index_acks: bool, assert_quiet: Quiet
) -> None:
    consumer = subscribe(client, topic, index_acks=index_acks)
    table = received(consumer, 10)
    holder = holder_of_all(broker, topic, free=consumer)
    consumer.acknowledge_arrow(table.slice(0, 5))
    holder.close()
    assert values(consumer, 5) == numbers(5, 10)
    assert_quiet(consumer)


def test_an_id_that_does_not_know_how_large_its_batch_is(broker: Broker, client: Client, topic: str) -> None:
    ledger_id, entry_id, _ = broker.stored_blocks(topic)[0]
    place = MessageId(-1, ledger_id, entry_id, 2)
    holder = holder_of_all(broker, topic)
    consumer = subscribe(client, topic)
    consumer.acknowledge(place)
    holder.close()
    assert values(consumer, 9) == [*numbers(0, 2), *numbers(3, 10)]


def test_a_cumulative_acknowledgment_with_such_an_id(broker: Broker, client: Client, topic: str) -> None:
    ledger_id, entry_id, _ = broker.stored_blocks(topic)[0]

    def subscribe(queue: int) -> Consumer:
        return client.subscribe(
            topic, "ordered", initial_position=EARLIEST, receiver_queue_size=queue, ack_receipt_enabled=True,
            batch_index_ack_enabled=True,
        )  # fmt: skip

    ordered = subscribe(0)
    ordered.acknowledge_cumulative(MessageId(-1, ledger_id, entry_id, 2))
    ordered.close()
    assert values(subscribe(10), 7) == numbers(3, 10)


def backlog(broker: Broker, topic: str) -> int:
    stats = broker.admin().topics.stats(topic)
    backlog: int = stats["subscriptions"]["s"]["msgBacklog"]
    return backlog


def until_all_came(consumers: Sequence[Consumer], wanted: list[bytes]) -> list[list[bytes]]:
    """Receive and acknowledge until all of these came to one of the consumers; returns what came to each."""
    came: list[list[bytes]] = [[] for _ in consumers]

    def have_all_come() -> bool:
        for consumer, of_consumer in zip(consumers, came, strict=True):
            with suppress(Timeout):
                message = consumer.receive(1)
                of_consumer.append(message.data())
                consumer.acknowledge(message)
        return set(wanted) <= {value for of_consumer in came for value in of_consumer}

    wait_until(have_all_come, what="all of them at one of the consumers")
    return came


@pytest.mark.parametrize("index_acks", [False, True])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_a_batch_comes_again_whose_consumers_session_expired_amid_it(
    broker: Broker, client: Client, topic: str, index_acks: bool, beside: bool, assert_quiet: Quiet
) -> None:
    consumer = subscribe(client, topic, index_acks=index_acks)
    in_hand = receive(consumer, 4)
    consumer.acknowledge(in_hand[:2])
    consumers = [consumer]
    if beside:
        consumers.append(subscribe(broker.client(), topic, index_acks=index_acks))
    broker.expire_sessions(topic, "s")
    own, *others = until_all_came(consumers, numbers(2, 10))
    assert not set(own) & set(numbers(0, 2)), "it had acknowledged them"
    if index_acks:
        assert sorted(sum(others, own)) == numbers(2, 10), "acknowledged ones came again, or some twice"
    consumer.acknowledge(in_hand[2:])
    for each in consumers:
        assert_quiet(each)
    wait_until(lambda: backlog(broker, topic) == 0, what="the batch is acknowledged")


def test_acknowledged_parts_of_a_shared_batch_outlast_the_dispatcher(
    make_broker: Callable[..., Broker], assert_quiet: Quiet
) -> None:
    # The cursor keeps whole entries alone, and a batch is complete only for who knows both parts.
    broker = make_broker(reattach_grace_seconds=0.3, session_lease_seconds=3)
    topic = broker.topic()

    def subscribe(priority: int) -> Consumer:
        return broker.client().subscribe(
            topic,
            "s",
            SHARED,
            initial_position=EARLIEST,
            ack_receipt_enabled=True,
            ack_grouping_time_ms=0,
            priority_level=priority,
        )

    dying = broker.client()
    crashed = dying.subscribe(topic, "s", SHARED)
    send_batch(broker.client(), topic, numbers(0, 8))
    receive(crashed, 8)
    dying.shutdown()
    first = subscribe(1)
    half = receive(first, 4)
    assert [message.data() for message in half] == numbers(0, 4), "it comes again in halves"
    second = subscribe(0)
    broker.wait_for_room(topic, "s", 2)  # else the other half goes to the first one, too
    first.acknowledge(half)
    rest = receive(second, 4)
    broker.cluster.kill(f"{topic} -> s")
    second.acknowledge(rest)
    wait_until(lambda: backlog(broker, topic) == 0, what="the batch is acknowledged")
    assert_quiet(first)
    assert_quiet(second)


@pytest.mark.parametrize(
    "place",
    [
        MessageId(-1, 1 << 70, 0),
        MessageId(-1, 5, 1 << 70),
        MessageId(-1, -5, -7),
        MessageId(-1, 5, 1, 1 << 40),
        MessageId("-1", "5", "1"),
    ],
    ids=repr,
)
def test_ids_that_no_message_has_are_refused(
    broker: Broker, client: Client, topic: str, place: MessageId
) -> None:
    consumer = subscribe(client, topic)
    ordered = client.subscribe(topic, "ordered", initial_position=EARLIEST)
    for call in (consumer.acknowledge, consumer.negative_acknowledge, ordered.acknowledge_cumulative):
        with pytest.raises(ValueError, match="is no message id"):
            call(place)
    with pytest.raises(ValueError, match="is no message id"):
        consumer.seek(place)
    with pytest.raises(ValueError, match="is no message id"):
        client.create_reader(topic, place)
    with pytest.raises(ValueError, match="is no message id"):
        broker.admin().topics.reset_cursor(topic, "s", place)
    assert values(consumer, 10, acknowledge=True) == values(ordered, 10, acknowledge=True) == numbers(0, 10)


def test_ids_of_messages_that_there_are_not_change_nothing(
    broker: Broker, client: Client, topic: str, assert_quiet: Quiet
) -> None:
    ordered = client.subscribe(
        topic,
        "ordered",
        initial_position=EARLIEST,
        ack_receipt_enabled=True,
        negative_ack_redelivery_delay_ms=0,
    )
    messages = receive(ordered, 10)
    place = messages[0].message_id()
    beyond = MessageId(-1, place.ledger_id(), place.entry_id(), 2**31 - 1)
    for nowhere in (beyond, MessageId.latest, MessageId.earliest, MessageId(-1, place.ledger_id() + 9, 3, 1)):
        ordered.acknowledge(nowhere)
        ordered.negative_acknowledge(nowhere)
    ordered.acknowledge_cumulative(MessageId.latest)
    ordered.acknowledge_cumulative(MessageId.earliest)
    broker.cluster.kill(f"{topic} -> ordered")
    ordered.acknowledge(messages[:4])
    assert_quiet(ordered)
    ordered.redeliver_unacknowledged_messages()
    assert values(ordered, 6) == numbers(4, 10)


def test_tables_with_numbers_that_no_row_has_are_refused(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    table = received(consumer, 10)
    for name, number in (
        ("ledger_id", -5),
        ("entry_id", -1),
        ("batch_index", -2),
        ("batch_index", 2**31 - 1),
    ):
        place = table.schema.get_field_index(name)
        wrong = pa.array([number] * 10, table.schema.field(name).type if number < 2**31 - 1 else pa.int64())
        for call in (consumer.acknowledge_arrow, consumer.negative_acknowledge_arrow):
            with pytest.raises(ValueError, match=name):
                call(table.set_column(place, name, wrong))
    consumer.acknowledge_arrow(table)
