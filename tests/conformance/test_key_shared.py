"""Key_Shared over every carrier: a key is with one consumer at a time, in order, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerKeySharedPolicy
from pulsar_ray.client.received.message import Message
from pulsar_ray.dispatch.key_shared.sticky_key import Slotting, slot_of
from pulsar_ray.errors import (
    ConsumerAssignError,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    NotAllowedError,
    SubscriptionNotFound,
    Timeout,
)
from pulsar_ray.model.enums import BatchingType, CompressionType, ConsumerType, KeySharedMode
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, receive
from tests.conformance.keyed import DIGITS, OF_C2, keys_of, publish, subscribe


def drain(consumer: Consumer, quiet_ms: int = 300) -> list[Message]:
    """What is there and comes, until nothing has come for a while."""
    found = []
    while True:
        try:
            found.append(consumer.receive(quiet_ms))
        except Timeout:
            return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression_type": CompressionType.ZSTD},
        {"batching_enabled": True, "batching_type": BatchingType.KeyBased},
    ],
    ids=["unbatched", "compressed", "key-based"],
)
def test_keys_stay_with_their_consumers(broker: Broker, client: Client, options: dict[str, object]) -> None:
    topic = broker.topic()
    first, second = subscribe(client, topic), subscribe(broker.client(), topic, "c2")
    publish(client, topic, DIGITS * 20, **options)
    ours, theirs = receive(first, 140), receive(second, 60)
    assert set(keys_of(theirs)) == set(OF_C2)
    for got in (ours, theirs):
        for key in set(keys_of(got)):
            numbers = [int(message.data()) for message in got if message.partition_key() == key]
            assert numbers == list(range(int(key), 200, 10))


def stats(broker: Broker, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.admin().topics.stats(topic)["subscriptions"]["s"]
    return found


def consumer_stats(broker: Broker, topic: str, name: str) -> dict[str, Any]:
    return next(one for one in stats(broker, topic)["consumers"] if one["consumerName"] == name)


def test_a_backlog_is_divided_like_what_comes_later(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s", ConsumerType.Shared, initial_position=EARLIEST).close()
    publish(client, topic, DIGITS * 100)
    first = subscribe(client, topic, receiver_queue_size=50)
    second = subscribe(broker.client(), topic, "c2", receiver_queue_size=50)
    got: list[Message] = []

    def both_receive() -> bool:
        for consumer in (first, second):
            for message in consumer.batch_receive():
                consumer.acknowledge(message)
                got.append(message)
        return len(got) == 1000

    wait_until(both_receive)
    assert sorted(int(message.data()) for message in got) == list(range(1000))
    for key in DIGITS:
        numbers = [int(message.data()) for message in got if message.partition_key() == key]
        assert numbers == sorted(numbers)


def test_the_ordering_key_decides_and_keyless_messages_have_one_consumer(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    first, second = subscribe(client, topic), subscribe(broker.client(), topic, "c2")
    producer = client.create_producer(topic)
    producer.send(b"by ordering key", partition_key="0", ordering_key="5")
    producer.send(b"by key", partition_key="0")
    producer.send(b"keyless")
    producer.send(b"of an empty key", partition_key="")
    assert [message.data() for message in receive(second, 3)] == [
        b"by ordering key",
        b"keyless",
        b"of an empty key",
    ]
    assert receive(first, 1)[0].data() == b"by key"
    producer.send_many([b"a", b"b", b"c"], partition_keys=["0", None, "5"], ordering_keys=[None, None, "0"])
    assert [message.data() for message in receive(first, 2)] == [b"a", b"c"]
    assert receive(second, 1)[0].data() == b"b"


def test_a_long_key_and_a_lone_row_are_read_from_where_they_are(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first, second = subscribe(client, topic), subscribe(broker.client(), topic, "c2")
    producer = client.create_producer(topic)
    producer.send(b"long", partition_key="k" * 3000)
    producer.send_many([b"lone"], partition_keys=["0"])
    producer.send(b"z" * 2_000_000, partition_key="5")
    by_owner = first if slot_of("k" * 3000, Slotting.RANGE) >= 32768 else second
    assert receive(by_owner, 1)[0].data() == b"long"
    assert receive(first, 1)[0].data() == b"lone"
    assert len(receive(second, 1)[0].data()) == 2_000_000


def test_a_mixed_batch_goes_to_the_consumer_of_its_first_message(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first, second = subscribe(client, topic), subscribe(broker.client(), topic, "c2")
    publish(client, topic, ["5", "0", "5", "0"], batching_enabled=True, batching_max_publish_delay_ms=60_000)
    assert keys_of(receive(second, 4)) == ["5", "0", "5", "0"]
    publish(client, topic, [None, "0"], batching_enabled=True, batching_max_publish_delay_ms=60_000)
    assert len(receive(second, 2)) == 2
    publish(client, topic, ["0", None], batching_enabled=True, batching_max_publish_delay_ms=60_000)
    assert len(receive(first, 2)) == 2


def test_hashes_that_move_to_a_new_consumer_wait_for_the_former_ones_acknowledgments(
    make_broker: Callable[..., Broker], assert_quiet: Callable[[Consumer], None]
) -> None:
    broker = make_broker(
        subscription_key_shared_use_consistent_hashing=True,
        subscription_key_shared_consistent_hashing_replica_points=10,
    )
    client, topic = broker.client(), broker.topic()
    first = subscribe(client, topic)
    publish(client, topic, DIGITS * 2)
    held = receive(first, 20)
    second = subscribe(broker.client(), topic, "c2")
    publish(client, topic, DIGITS)
    assert keys_of(receive(first, 5)) == list("01256")
    assert_quiet(second)
    told = consumer_stats(broker, topic, "c1")
    assert told["keyHashRangeArrays"] == [[2960, 5968], [22258, 43033], [49261, 54464], [55155, 61273]]
    assert told["drainingHashesCount"] == 5
    assert told["drainingHashesUnackedMessages"] == 10
    assert [(drain["hash"], drain["unackMsgs"]) for drain in told["drainingHashes"]] == [
        (2862, 2), (11707, 2), (15786, 2), (43539, 2), (45436, 2),
    ]  # fmt: skip
    assert all(drain["blockedAttempts"] > 0 for drain in told["drainingHashes"])
    assert consumer_stats(broker, topic, "c2")["drainingHashes"] == []
    assert stats(broker, topic)["drainingHashesCount"] == 5
    admin = broker.admin().topics
    told = admin.why_blocked(topic, "s")
    nine = next(one for one in told["hashes"] if one["hash"] == 2862)
    ids = [[m.message_id().ledger_id(), m.message_id().entry_id(), -1] for m in (held[9], held[19])]
    assert nine["heldBy"] == [{"consumerName": "c1", "unackMsgs": 2, "messageIds": ids}]
    assert (nine["owner"], nine["waitingMessages"]) == ("c2", 1)
    assert "still drains at c1" in told["reason"]
    assert admin.key_owner(topic, "s", "9") == {"key": "9", "hash": 2862, "owner": "c2", "drainedBy": ["c1"]}
    for message in held:
        if message.partition_key() == "9":
            first.acknowledge(message)
    assert keys_of(receive(second, 1)) == ["9"]
    first.negative_acknowledge(next(message for message in held if message.partition_key() == "8"))
    for message in held:
        if message.partition_key() in ("3", "4", "7"):
            first.acknowledge(message)
    assert keys_of(receive(second, 3)) == ["3", "4", "7"]
    wait_until(lambda: consumer_stats(broker, topic, "c1")["drainingHashesClearedTotal"] == 4)


def test_what_a_crashed_consumer_held_goes_to_the_others_in_order(make_broker: Callable[..., Broker]) -> None:
    # Over the tunnel nothing tells that it is gone before its lease ends.
    broker = make_broker(session_lease_seconds=5)
    client, topic = broker.client(), broker.topic()
    first = subscribe(client, topic)
    dying = broker.client()
    subscribe(dying, topic, "c2")
    publish(client, topic, DIGITS * 3)
    ours = receive(first, 21)
    wait_until(lambda: consumer_stats(broker, topic, "c2")["msgOutCounter"] == 9)
    dying.shutdown()
    publish(client, topic, OF_C2)
    came = receive(first, 12)
    assert keys_of(came) == OF_C2 * 4
    assert set(keys_of(ours)) == set(DIGITS) - set(OF_C2)


def test_a_nacked_message_comes_back_to_its_keys_consumer(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first = subscribe(client, topic, negative_ack_redelivery_delay_ms=100)
    second = subscribe(broker.client(), topic, "c2", negative_ack_redelivery_delay_ms=100)
    publish(client, topic, DIGITS)
    failed = receive(second, 3)[1]
    second.negative_acknowledge(failed)
    again = receive(second, 1)[0]
    assert (again.partition_key(), again.redelivery_count()) == ("6", 1)
    assert len(receive(first, 7)) == 7


def test_a_killed_dispatcher_gives_no_key_to_a_second_consumer(
    broker: Broker, client: Client, assert_quiet: Callable[[Consumer], None]
) -> None:
    topic = broker.topic()
    first, second = subscribe(client, topic), subscribe(broker.client(), topic, "c2")
    publish(client, topic, DIGITS * 2)
    ours, theirs = receive(first, 14), receive(second, 6)
    broker.cluster.kill(broker.cluster.dispatcher_of(topic, "s").address)
    publish(client, topic, DIGITS)
    wait_until(lambda: first.is_connected() and second.is_connected())
    # Whoever holds a key keeps it until it has acknowledged; the ranges may have been given out anew.
    early = drain(first) + drain(second)
    held_by = dict.fromkeys(keys_of(ours), first) | dict.fromkeys(keys_of(theirs), second)
    for consumer, messages in ((first, ours), (second, theirs)):
        for message in messages:
            consumer.acknowledge(message)
    late: list[Message] = []

    def have_come() -> bool:
        late.extend(drain(first) + drain(second))
        return len(early + late) >= len(DIGITS)

    wait_until(have_come, what="the messages that were held back")
    assert sorted(keys_of(early + late)) == DIGITS
    assert set(held_by) == set(DIGITS)
    assert_quiet(first)


def test_declared_ranges(broker: Broker, client: Client, assert_quiet: Callable[[Consumer], None]) -> None:
    topic = broker.topic()

    def sticky(*ranges: tuple[int, int]) -> ConsumerKeySharedPolicy:
        return ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges)

    first = subscribe(client, topic, key_shared_policy=sticky((40000, 65535)))
    publish(client, topic, DIGITS)
    assert keys_of(receive(first, 6)) == list("012349")
    assert_quiet(first)
    with pytest.raises(ConsumerAssignError, match="overlaps"):
        subscribe(client, topic, "c2", key_shared_policy=sticky((0, 40000)))
    with pytest.raises(ConsumerBusy):
        subscribe(client, topic, "c2")
    with pytest.raises(ConsumerBusy):
        client.subscribe(topic, "s", ConsumerType.Shared)
    second = subscribe(client, topic, "c2", key_shared_policy=sticky((0, 99), (100, 39999)))
    assert keys_of(receive(second, 4)) == list("5678")
    assert consumer_stats(broker, topic, "c2")["keyHashRangeArrays"] == [[0, 99], [100, 39999]]
    assert stats(broker, topic)["keySharedMode"] == "STICKY"


def test_out_of_order_delivery_is_a_consumers_own_choice(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first = subscribe(client, topic)
    publish(client, topic, DIGITS)
    receive(first, 10)
    hasty = ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    second = subscribe(broker.client(), topic, "c2", key_shared_policy=hasty)
    publish(client, topic, DIGITS)
    assert keys_of(receive(second, 3)) == OF_C2
    assert stats(broker, topic)["drainingHashesCount"] == 0


def test_what_makes_no_sense_is_refused_before_anything_is_sent(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    for ranges in ([(0, 10), (10, 20)], [(5, 4)], [(0, 65536)], [], None):
        with pytest.raises(ValueError, match="sticky_ranges"):
            ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges)
    with pytest.raises(InvalidConfiguration, match="key_shared_policy"):
        client.subscribe(topic, "s", ConsumerType.Shared, key_shared_policy=ConsumerKeySharedPolicy())
    consumer = subscribe(client, topic)
    publish(client, topic, ["k"])
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(receive(consumer, 1)[0])


def test_arrow_tables_are_divided_by_key(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first, second = subscribe(client, topic), subscribe(broker.client(), topic, "c2")
    # As always, an entry goes to one consumer: of a table there are as many entries as keys.
    producer = client.create_producer(topic, batching_enabled=True, batching_type=BatchingType.KeyBased)
    producer.send_arrow(pa.table({"value": [b"%d" % n for n in range(1000)], "key": DIGITS * 100}))
    for consumer, count, keys in ((first, 700, set(DIGITS) - set(OF_C2)), (second, 300, set(OF_C2))):
        rows = 0
        while rows < count:
            table = consumer.receive_arrow(timeout_millis=WAIT_MS)
            assert set(table["key"].to_pylist()) <= keys
            consumer.acknowledge_arrow(table)
            rows += table.num_rows
    wait_until(lambda: stats(broker, topic)["msgBacklog"] == 0)


def test_nobody_waits_for_the_keys_of_a_consumer_that_takes_nothing(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    subscribe(client, topic, receiver_queue_size=1)
    second = subscribe(broker.client(), topic, "c2")
    publish(client, topic, DIGITS * 50)
    got = receive(second, 150)
    assert keys_of(got) == OF_C2 * 50


def test_a_subscription_that_stands_still_says_so(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(stuck_subscription_warning_seconds=0.5)
    client, topic = broker.client(), broker.topic()
    first = subscribe(client, topic)
    publish(client, topic, DIGITS)
    held = receive(first, 10)
    second = subscribe(broker.client(), topic, "c2")
    publish(client, topic, ["5"])
    wait_until(lambda: "still drains at c1" in stats(broker, topic)["stuckReason"])
    assert stats(broker, topic)["stuckForMs"] >= 500
    for message in held:
        first.acknowledge(message)
    assert keys_of(receive(second, 1)) == ["5"]
    wait_until(lambda: stats(broker, topic)["stuckForMs"] == 0)


def test_questions_about_partitions_and_other_types(broker: Broker, client: Client) -> None:
    topics, topic = broker.admin().topics, broker.topic(partitions=2)
    subscribe(client, topic)
    owners = topics.key_owner(topic, "s", "Order-3459134")["partitions"]
    assert {one["hash"] for one in owners.values()} == {6067}
    assert {one["owner"] for one in owners.values()} == {"c1"}
    shared = broker.topic()
    consumer = client.subscribe(shared, "s", ConsumerType.Shared, receiver_queue_size=1)
    with pytest.raises(NotAllowedError):
        topics.key_owner(shared, "s", "k")
    with pytest.raises(SubscriptionNotFound):
        topics.why_blocked(shared, "another")
    assert topics.why_blocked(shared, "s")["reason"] == "everything is acknowledged"
    publish(client, shared, DIGITS)
    wait_until(lambda: "receiver queue is full" in topics.why_blocked(shared, "s")["reason"])
    consumer.close()
    assert topics.why_blocked(shared, "s")["reason"] == "no consumer is connected"
