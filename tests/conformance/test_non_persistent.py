"""Non-persistent topics over every carrier: delivered at once to whoever can take it, or lost and counted."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer import Consumer
from pulsar_ray.client.message import Message
from pulsar_ray.client.producer import Producer
from pulsar_ray.errors import (
    ConsumerBusy,
    MessageTooBig,
    NotAllowedError,
    OperationNotSupported,
    ProducerBusy,
    PulsarException,
    Result,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    ConsumerType,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport import ray_connection
from pulsar_ray.transport.names import dispatcher_name
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]
TYPES = tuple(ConsumerType)
NOWHERE = (-1, -1)
_TOPICS = itertools.count()


@pytest.fixture(autouse=True)
def no_carrier_is_given_up(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way over a carrier that is given up is lost: bad luck must not decide a test."""
    if transport == "lossy":
        monkeypatch.setattr(ray_connection, "LOST_CALLS", 1_000_000)


def new_topic() -> str:
    return f"non-persistent://public/default/n{next(_TOPICS)}"


def place(message_id: MessageId) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()


def drops(broker: Broker, topic: str, subscription: str) -> dict[str, Any]:
    """The subscription's own stats, after a look at what its partition dropped for it."""
    actor = broker.cluster.dispatcher_of(topic, subscription)
    server = actor.server
    assert server is not None
    actor.result(actor.submit(server.look_around), 10)
    found: dict[str, Any] = server.stats()["subscriptions"][subscription]
    return found


def send_all(producer: Producer, sent: list[bytes]) -> None:
    for value in sent:
        producer.send_async(value, None)
    producer.flush()


def send_until_received(producer: Producer, consumer: Consumer) -> list[bytes]:
    """Send until something arrives, as after a loss; what arrived. Fails if nothing does."""
    got: list[bytes] = []
    counter = itertools.count()

    def arrived() -> bool:
        producer.send(b"again %d" % next(counter))
        try:
            got.append(consumer.receive(100).data())
        except Timeout:
            return False
        return True

    wait_until(arrived, what="messages that flow again")
    return got


@pytest.mark.parametrize("consumer_type", TYPES)
@pytest.mark.parametrize("batching", [False, True])
def test_every_subscription_gets_everything_in_order(
    client: Client, consumer_type: ConsumerType, batching: bool
) -> None:
    topic = new_topic()
    consumers = [client.subscribe(topic, f"s{number}", consumer_type) for number in range(3)]
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=7)
    send_all(producer, numbers(0, 100))
    for consumer in consumers:
        assert values(consumer, 100, acknowledge=True) == numbers(0, 100)


@pytest.mark.parametrize("compression", list(CompressionType))
def test_messages_come_with_all_they_have(client: Client, compression: CompressionType) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "me", compression_type=compression, batching_enabled=True)
    producer.send_async(
        b"value" * 100,
        None,
        properties={"a": "b"},
        partition_key="k",
        ordering_key="o",
        sequence_id=7,
        event_timestamp=5,
    )
    producer.send(None)
    message, tombstone = receive(consumer, 2)
    assert (message.data(), message.properties()) == (b"value" * 100, {"a": "b"})
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("k", "o", 5)
    assert (message.producer_name(), message.topic_name()) == ("me", topic)
    assert (message.redelivery_count(), tombstone.has_null_value()) == (0, True)


def test_ids_say_that_a_message_stands_nowhere(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [producer.send(value) for value in numbers(0, 3)]
    assert sent == [MessageId(-1, -1, -1, -1)] * 3
    told: list[MessageId] = []
    for value in numbers(3, 40):
        producer.send_async(value, lambda _, message_id: told.append(message_id))
    producer.flush()
    assert {place(message_id) for message_id in told} == {NOWHERE}
    assert [place(message_id) for message_id in producer.send_many(numbers(40, 60))] == [NOWHERE]
    batching = client.create_producer(topic, batching_enabled=True)
    batched: list[MessageId] = []
    for value in numbers(60, 63):
        batching.send_async(value, lambda _, message_id: batched.append(message_id))
    batching.flush()
    assert [(*place(one), one.batch_index()) for one in batched] == [(-1, -1, row) for row in range(3)]
    got = receive(consumer, 63)
    assert {place(message.message_id()) for message in got} == {NOWHERE}
    assert [message.data() for message in got] == numbers(0, 63)
    assert [message.message_id().batch_index() for message in got[60:]] == [0, 1, 2]


def test_arrow_in_and_out(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = producer.send_arrow(pa.table({"key": ["a", "b"] * 200, "value": numbers(0, 400)}))
    assert [place(message_id) for message_id in ids] == [NOWHERE]
    rows = 0
    while rows < 400:
        table = consumer.receive_arrow(timeout_millis=WAIT_MS)
        assert table["value"].to_pylist() == numbers(rows, rows + table.num_rows)
        assert set(table["ledger_id"].to_pylist()) == set(table["entry_id"].to_pylist()) == {-1}
        consumer.acknowledge_arrow(table)
        consumer.negative_acknowledge_arrow(table)
        rows += table.num_rows


def test_nothing_is_kept_for_later(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = new_topic()
    producer = client.create_producer(topic)
    producer.send(b"before anybody came")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer.send(b"seen")
    assert values(consumer, 1) == [b"seen"]
    consumer.close()
    producer.send(b"while away")
    again = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert_quiet(again)
    producer.send(b"after")
    assert values(again, 1) == [b"after"]
    assert drops(broker, topic, "s")["msgDropCounter"] == 1
    assert list(broker._directory.glob("**/*.seg")) == []
    assert list(broker._directory.glob("p/*")) == []


def test_what_finds_no_permits_is_dropped_and_counted(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = new_topic()
    slow = client.subscribe(topic, "slow", receiver_queue_size=5)
    quick = client.subscribe(topic, "quick")
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send(value)
    assert values(quick, 20) == numbers(0, 20)
    wait_until(lambda: drops(broker, topic, "slow")["msgDropCounter"] == 15, what="15 drops")
    assert values(slow, 5) == numbers(0, 5)
    assert_quiet(slow)
    stats = drops(broker, topic, "slow")
    wait_until(lambda: drops(broker, topic, "slow")["msgDropRate"] > 0, what="a rate of drops")
    assert (stats["msgBacklog"], stats["unackedMessages"], stats["isDurable"]) == (0, 0, False)
    assert [consumer["msgOutCounter"] for consumer in stats["consumers"]] == [5]
    assert drops(broker, topic, "quick")["msgDropCounter"] == 0
    partition = broker.cluster.non_persistent_partition(topic).server
    assert partition is not None
    assert partition.stats()["msgInCounter"] == 20


def test_a_consumer_that_keeps_up_loses_nothing_however_small_its_queue(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=20)
    producer = client.create_producer(topic)
    for value in numbers(0, 100):
        producer.send(value)
        # Without acknowledging: receiving is what gives permits back.
        assert consumer.receive(WAIT_MS).data() == value


def test_a_queue_of_zero_gets_what_is_sent_while_somebody_waits(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=0)
    producer = client.create_producer(topic)
    future = consumer.receive_async()

    def arrived() -> bool:
        producer.send(b"x")
        return future.done()

    wait_until(arrived, what="the message somebody waits for")
    assert future.result(1).data() == b"x"


def test_acknowledging_and_asking_again_are_taken_and_change_nothing(
    client: Client, assert_quiet: Quiet
) -> None:
    topic = new_topic()
    consumer = client.subscribe(
        topic, "s", ack_receipt_enabled=True, negative_ack_redelivery_delay_ms=0, batch_index_ack_enabled=True
    )
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=4)
    send_all(producer, numbers(0, 20))
    messages = receive(consumer, 20)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[1].message_id())
    consumer.acknowledge(messages[2:4])
    consumer.acknowledge_cumulative(messages[9])
    consumer.acknowledge_cumulative(messages[10].message_id())
    consumer.negative_acknowledge(messages[11])
    consumer.negative_acknowledge(messages[12].message_id())
    consumer.redeliver_unacknowledged_messages()
    consumer.seek(MessageId.earliest)
    consumer.seek(messages[3].message_id())
    consumer.seek(1)
    assert_quiet(consumer)
    send_all(producer, numbers(20, 40))
    view = consumer.batch_receive()
    consumer.acknowledge(view)
    assert values(consumer, 20 - len(view)) == numbers(20 + len(view), 40)
    for question in (consumer.get_last_message_id, consumer.get_last_message_ids):
        with pytest.raises(OperationNotSupported, match="non-persistent"):
            question()


def test_what_is_not_acknowledged_is_not_remembered_either(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=10)
    producer = client.create_producer(topic)
    for value in numbers(0, 30):
        producer.send(value)
        consumer.receive(WAIT_MS)
    (partition,) = consumer._core.partitions
    assert len(partition.held) == 0


def test_exclusive_and_shared_keep_their_rules(client: Client, broker: Broker) -> None:
    topic = new_topic()
    client.subscribe(topic, "x")
    with pytest.raises(ConsumerBusy):
        broker.client().subscribe(topic, "x")
    shared = [broker.client().subscribe(topic, "s", ConsumerType.Shared) for _ in range(2)]
    with pytest.raises(ConsumerBusy):
        client.subscribe(topic, "s")
    producer = client.create_producer(topic, "one")
    with pytest.raises(ProducerBusy):
        client.create_producer(topic, "one")
    send_all(producer, numbers(0, 200))
    got: list[bytes] = []

    def all_arrived() -> bool:
        for consumer in shared:
            if consumer._core.has_received():
                got.append(consumer.receive(WAIT_MS).data())
            else:
                consumer._core.wait(0.01)
        return len(got) == 200

    wait_until(all_arrived, what="all of 200 at two consumers")
    assert sorted(got) == numbers(0, 200)


def test_listeners_futures_and_batches(client: Client) -> None:
    topic = new_topic()
    heard: list[bytes] = []

    def listen(consumer: Consumer, message: Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)

    client.subscribe(topic, "listening", message_listener=listen)
    waiting = client.subscribe(topic, "waiting")
    futures = [waiting.receive_async() for _ in range(10)]
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    assert [future.result(WAIT_MS / 1000).data() for future in futures] == numbers(0, 10)
    wait_until(lambda: heard == numbers(0, 10), what="what a listener hears")


def test_partitioned_topics(broker: Broker, client: Client) -> None:
    topic = new_topic()
    broker.cluster.create_topic(topic, 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(3)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number, partition_key=f"k{number}") for number in range(40)]
    assert {place(message_id) for message_id in ids} == {NOWHERE}
    got = receive(consumer, 40)
    assert sorted(int(message.data()) for message in got) == list(range(40))
    assert {message.message_id().partition() for message in got} == {0, 1, 2}
    for message in got:
        consumer.acknowledge(message)
    alone = client.subscribe(f"{topic}-partition-1", "alone")
    client.create_producer(f"{topic}-partition-1").send(b"to one")
    assert values(alone, 1) == [b"to one"]


def test_readers_see_what_comes_from_now_on(client: Client) -> None:
    topic = new_topic()
    producer = client.create_producer(topic)
    producer.send(b"before")
    readers = [client.create_reader(topic, start) for start in (MessageId.earliest, MessageId.latest)]
    assert [reader.has_message_available() for reader in readers] == [False, False]
    send_all(producer, numbers(0, 5))
    for reader in readers:
        assert [reader.read_next(WAIT_MS).data() for _ in range(5)] == numbers(0, 5)
        reader.seek(MessageId.earliest)
        assert not reader.has_message_available()
        reader.close()


def test_large_messages_pass_and_too_large_ones_are_refused(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    large = b"x" * (5 * 1024 * 1024)
    producer.send(large)
    assert consumer.receive(WAIT_MS).data() == large
    with pytest.raises(MessageTooBig):
        producer.send(large + b"x")
    producer.send(b"after")
    assert values(consumer, 1) == [b"after"]


def test_unsubscribing_forgets_the_subscription(broker: Broker, client: Client) -> None:
    topic = new_topic()
    client.subscribe(topic, "s", receiver_queue_size=1).unsubscribe()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]
    assert drops(broker, topic, "s")["msgDropCounter"] == 0


def test_a_killed_partition_loses_messages_and_nobody(broker: Broker, client: Client) -> None:
    topic = new_topic()
    consumers = [client.subscribe(topic, name) for name in ("a", "b")]
    producer = client.create_producer(topic)
    producer.send(b"before")
    assert [values(consumer, 1) for consumer in consumers] == [[b"before"]] * 2
    broker.cluster.kill(topic)
    for consumer in consumers:
        assert send_until_received(producer, consumer)


def test_what_is_sent_while_the_partition_is_away_is_answered_when_it_is_back(
    broker: Broker, client: Client
) -> None:
    topic = new_topic()
    producer = client.create_producer(topic)
    producer.send(b"before")
    broker.cluster.kill(topic, keep_down=True)
    told: list[Any] = []
    for value in numbers(0, 30):
        producer.send_async(value, lambda result, _: told.append(result))
    broker.cluster.allow(topic)
    producer.flush()
    assert told == [Result.Ok] * 30


def test_a_killed_dispatcher_loses_messages_and_nobody(broker: Broker, client: Client) -> None:
    topic = new_topic()
    consumer, other = client.subscribe(topic, "s"), client.subscribe(topic, "other")
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    assert values(other, 10) == numbers(0, 10)
    broker.cluster.kill(dispatcher_name(topic, "s", durable=True))
    # What was here already is still handed out.
    assert values(consumer, 10) == numbers(0, 10)
    producer.send(b"meanwhile")
    assert values(other, 1) == [b"meanwhile"]
    assert send_until_received(producer, consumer)


def test_a_subscription_that_is_stuck_delays_nobody(broker: Broker, client: Client) -> None:
    topic = new_topic()
    client.subscribe(topic, "stuck")
    quick = client.subscribe(topic, "quick")
    producer = client.create_producer(topic)
    frozen = broker.cluster.dispatcher_of(topic, "stuck")
    frozen.freeze()
    value = b"y" * 200_000
    for _ in range(100):
        producer.send(value)
        assert quick.receive(WAIT_MS).data() == value
    partition = broker.cluster.non_persistent_partition(topic).server
    assert partition is not None
    (publisher,) = partition.stats()["publishers"]
    assert publisher["producerName"] == producer.producer_name()
    assert publisher["msgDropCounter"] > 0
    frozen.thaw()


def test_a_lost_connection_is_made_again(broker: Broker, client: Client) -> None:
    if broker.transport not in ("socket", "tcp"):
        pytest.skip("needs a lane to cut")
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for address in (topic, dispatcher_name(topic, "s", durable=True)):
        send_until_received(producer, consumer)
        broker.cluster.cut_lanes(address)
    assert send_until_received(producer, consumer)


def test_the_switch_refuses_them(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(enable_non_persistent_topics=False)
    client, topic = broker.client(), new_topic()
    uses: list[Callable[[], object]] = [
        lambda: client.create_producer(topic),
        lambda: client.subscribe(topic, "s"),
        lambda: client.create_reader(topic, MessageId.latest),
    ]
    for use in uses:
        with pytest.raises(NotAllowedError, match="enable_non_persistent_topics"):
            use()
    client.create_producer(broker.topic()).send(b"stored topics work")


def test_a_missing_namespace_and_a_partition_that_is_none_are_refused(broker: Broker, client: Client) -> None:
    with pytest.raises(TopicNotFound):
        client.create_producer("non-persistent://nobody/nowhere/t")
    topic = new_topic()
    broker.cluster.create_topic(topic, 2)
    with pytest.raises(NotAllowedError):
        client.create_producer(f"{topic}-partition-2")


def test_subscriptions_are_not_created_in_advance(broker: Broker, client: Client) -> None:
    topic = new_topic()
    client.create_producer(topic)
    actor = broker.cluster.non_persistent_partition(topic)
    server = actor.server
    assert server is not None
    call = actor.submit(lambda: server.call("register_subscription", {"name": "s"}))
    with pytest.raises(PulsarException, match="non-persistent"):
        actor.result(call, 10)


def test_a_stream_as_fast_as_it_goes_arrives_in_order_as_far_as_it_arrives(
    broker: Broker, client: Client
) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=1000)
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    count = 20_000
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    got: list[int] = []

    def is_complete() -> bool:
        while consumer._core.has_received():
            got.append(int(consumer.receive(WAIT_MS).data()))
        dropped: int = drops(broker, topic, "s")["msgDropCounter"]
        return len(got) + dropped == count

    wait_until(is_complete, what="every message received or counted as dropped")
    assert got == sorted(set(got))


def test_subscribing_amid_a_stream_loses_no_permits(broker: Broker, client: Client) -> None:
    topic = new_topic()
    producer = broker.client().create_producer(topic)
    ended = threading.Event()

    def stream() -> None:
        while not ended.is_set():
            producer.send(b"x")

    streaming = threading.Thread(target=stream)
    streaming.start()
    try:
        for number in range(5):
            consumer = client.subscribe(topic, f"s{number}", receiver_queue_size=2)
            assert values(consumer, 10) == [b"x"] * 10
            consumer.close()
    finally:
        ended.set()
        streaming.join()


def test_an_administrator_sees_drops_and_deletes_subscriptions(broker: Broker, client: Client) -> None:
    topic, topics = new_topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s", receiver_queue_size=1)
    reader = client.create_reader(topic, MessageId.latest)
    producer = client.create_producer(topic)
    for value in numbers(0, 4):
        producer.send(value)
    wait_until(lambda: topics.stats(topic)["msgDropCounter"] == 3, what="three drops")
    stats = topics.stats(topic)
    assert stats["subscriptions"]["s"]["msgDropCounter"] == 3
    assert stats["subscriptions"]["s"]["isDurable"] is False
    assert len(stats["subscriptions"]) == 2
    assert (stats["msgInCounter"], stats["storageSize"], stats["backlogSize"]) == (4, 0, 0)
    assert [one["msgDropCounter"] for one in stats["publishers"]] == [0]
    for refused in (
        lambda: topics.create_subscription(topic, "t"),
        lambda: topics.skip(topic, "s", 1),
        lambda: topics.peek_messages(topic, "s"),
        lambda: topics.reset_cursor(topic, "s", "earliest"),
    ):
        with pytest.raises(OperationNotSupported, match="non-persistent"):
            refused()
    with pytest.raises(NotAllowedError, match="active connected consumers"):
        topics.unsubscribe(topic, "s")
    assert values(consumer, 1) == [b"000000"]
    topics.unsubscribe(topic, "s", force=True)
    with pytest.raises(SubscriptionNotFound):
        consumer.receive(WAIT_MS)
    assert topics.subscriptions(topic) == [reader._consumer.subscription_name()]
    assert [reader.read_next(WAIT_MS).data() for _ in range(4)] == numbers(0, 4)


def test_a_non_durable_subscription_shares_the_dispatcher_of_readers(broker: Broker, client: Client) -> None:
    topic = new_topic()
    durable = client.subscribe(topic, "s")
    other = client.subscribe(topic, "s", subscription_mode=SubscriptionMode.NonDurable)
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    assert values(durable, 10) == values(other, 10) == numbers(0, 10)
    broker.cluster.kill(dispatcher_name(topic, "s", durable=False))
    assert send_until_received(producer, other)


def test_a_failover_consumer_takes_over_and_the_former_one_keeps_what_it_has(
    broker: Broker, client: Client
) -> None:
    topic = new_topic()
    first = client.subscribe(topic, "s", ConsumerType.Failover, priority_level=2)
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    wait_until(first._core.has_received, what="the first messages")
    second = broker.client().subscribe(topic, "s", ConsumerType.Failover, priority_level=1)
    send_all(producer, numbers(10, 20))
    assert values(second, 10) == numbers(10, 20)
    assert values(first, 10) == numbers(0, 10)
    second.close()
    producer.send(b"x")
    assert values(first, 1) == [b"x"]


def test_a_pattern_finds_non_persistent_topics_that_come_later(client: Client) -> None:
    mode = RegexSubscriptionMode.NonPersistentOnly
    name = f"late-{next(_TOPICS)}"
    consumer = client.subscribe(
        re.compile(f"public/default/{name}-.*"),
        "s",
        regex_subscription_mode=mode,
        pattern_auto_discovery_period=1,
    )
    producer = client.create_producer(f"non-persistent://public/default/{name}-x")
    assert send_until_received(producer, consumer)


def test_a_table_view_needs_something_stored(client: Client) -> None:
    with pytest.raises(NotAllowedError, match="non-persistent"):
        client.create_table_view(new_topic())


@pytest.mark.parametrize("batching", [False, True])
def test_key_shared_consumers_get_all_messages_of_their_keys(
    broker: Broker, client: Client, batching: bool
) -> None:
    topic = new_topic()
    consumers = [broker.client().subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_type=BatchingType.KeyBased if batching else BatchingType.Default,
    )
    for number in range(300):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 20}")
    producer.flush()
    got: list[tuple[int, str, int]] = []

    def all_arrived() -> bool:
        for index, consumer in enumerate(consumers):
            while consumer._core.has_received():
                message = consumer.receive(WAIT_MS)
                got.append((index, message.partition_key(), int(message.data())))
                consumer.acknowledge(message)
        return len(got) == 300

    wait_until(all_arrived, what="all of 300 at three consumers")
    owners = {key: {index for index, of, _ in got if of == key} for _, key, _ in got}
    assert all(len(one) == 1 for one in owners.values())
    assert len({index for index, _, _ in got}) > 1
    for key in owners:
        sent = [number for _, of, number in got if of == key]
        assert sent == sorted(sent)
    consumers[0].close()
    producer.send(b"300", partition_key=next(key for key, one in owners.items() if one == {0}))
    wait_until(lambda: any(c._core.has_received() for c in consumers[1:]), what="a key that moved at once")
