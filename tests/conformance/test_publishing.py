"""Publishing over every carrier: batching, compression, sequence ids, queues, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.broker.serving import owner_loop
from pulsar_ray.client.client import Client
from pulsar_ray.errors import AlreadyClosed, MessageTooBig, ProducerBusy, ProducerQueueIsFull, Result
from pulsar_ray.model.enums import BatchingType, CompressionType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, Broker, numbers, receive, values

LONG_MS = 60_000


def rows_per_entry(broker: Broker, topic: str) -> list[list[bytes | None]]:
    return [block.values() for _, _, block in broker.stored_blocks(topic)]


def is_one_entry(message_ids: list[MessageId]) -> bool:
    return len({(i.ledger_id(), i.entry_id()) for i in message_ids}) == 1


def test_a_quick_disk_keeps_the_order(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_loop, "TRIAL_WRITES", 3)
    monkeypatch.setattr(owner_loop, "QUICK_S", 10.0)
    monkeypatch.setattr(owner_loop, "STALL_S", 9.0)
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    sent = numbers(0, 200)
    for number, value in enumerate(sent):
        # Between single ones, what comes in groups and what is too large to be waited for.
        if number % 20 < 10:
            producer.send(value)
        else:
            producer.send_async(value + (b"." * 100_000 if number % 20 == 15 else b""), None)
        if number % 7 == 0:
            consumer.acknowledge(consumer.receive(LONG_MS))
    producer.flush()
    stored = [value[:6] for _, _, block in broker.stored_blocks(topic) for value in block.values() if value]
    assert stored == sent


def test_a_batch_is_sealed_by_count_and_is_one_entry(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=LONG_MS
    )
    consumer = client.subscribe(topic, "s")
    ids: list[MessageId] = []
    for value in numbers(0, 10):
        producer.send_async(value, lambda _result, message_id: ids.append(message_id))
    messages = receive(consumer, 10)
    wait_until(lambda: len(ids) == 10, what="all callbacks")
    assert rows_per_entry(broker, topic) == [numbers(0, 5), numbers(5, 10)]
    assert [message.message_id() for message in messages] == ids
    assert [message_id.batch_index() for message_id in ids] == [0, 1, 2, 3, 4] * 2
    assert is_one_entry(ids[:5])
    assert is_one_entry(ids[5:])
    assert str(ids[0]).endswith(",-1,0)")


@pytest.mark.parametrize(("size", "per_batch"), [(250, 4), (333, 3), (334, 2), (999, 1), (1500, 1)])
def test_a_batch_is_sealed_by_bytes(broker: Broker, client: Client, size: int, per_batch: int) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_allowed_size_in_bytes=1000,
        batching_max_publish_delay_ms=LONG_MS,
    )
    for number in range(3 * per_batch):
        producer.send_async(b"%c" % (97 + number) * size, None)
    producer.flush()
    assert [len(rows) for rows in rows_per_entry(broker, topic)] == [per_batch] * 3


def test_a_batch_is_sealed_by_its_delay(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=20)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 3):
        producer.send_async(value, None)
    assert values(consumer, 3) == numbers(0, 3)


def test_a_synchronous_send_does_not_wait_for_the_batching_delay(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS)
    producer.send_async(b"first", None)
    message_id = producer.send(b"second")
    assert message_id.batch_index() == 1
    assert rows_per_entry(broker, topic) == [[b"first", b"second"]]
    assert producer.send(b"alone").batch_index() == 0


def test_flush_and_close_send_the_open_batch(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS)
    results: list[Any] = []
    producer.send_async(b"a", lambda result, _: results.append(result))
    producer.flush()
    assert results == [Result.Ok]
    producer.send_async(b"b", lambda result, _: results.append(result))
    producer.close()
    assert results == [Result.Ok, Result.Ok]
    assert broker.stored(topic) == [b"a", b"b"]


def test_key_based_batches_have_one_key_each_and_the_keyless_their_own(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=BatchingType.KeyBased,
        batching_max_publish_delay_ms=LONG_MS,
    )
    for number in range(12):
        key = (None, "k1", "k2", "k3")[number % 4]
        producer.send_async(
            b"%d" % number, None, partition_key=key, ordering_key="o" if key == "k3" else None
        )
    producer.flush()
    stored = broker.stored_blocks(topic)
    assert [block.values() for _, _, block in stored] == [
        [b"0", b"4", b"8"], [b"1", b"5", b"9"], [b"2", b"6", b"10"], [b"3", b"7", b"11"]
    ]  # fmt: skip
    assert [(block.metadata.key, block.metadata.ordering_key) for _, _, block in stored] == [
        (None, None), ("k1", None), ("k2", None), ("k3", "o")
    ]  # fmt: skip


def test_key_based_limits_hold_over_all_keys_together(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=BatchingType.KeyBased,
        batching_max_messages=4,
        batching_max_publish_delay_ms=LONG_MS,
    )
    for number in range(12):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 3}")
    producer.flush()
    assert len(broker.stored_blocks(topic)) == 9


def test_messages_sent_without_batching_share_blocks_but_are_entries_of_their_own(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=0)
    ids: list[MessageId] = []
    for value in numbers(0, 400):
        producer.send_async(value, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    blocks = broker.stored_blocks(topic)
    assert len(blocks) < 200
    assert sum(block.header.entries for _, _, block in blocks) == 400
    assert [i.batch_index() for i in ids] == [-1] * 400
    assert len(set(ids)) == 400


@pytest.mark.parametrize("codec", list(CompressionType))
@pytest.mark.parametrize("batching", [False, True])
def test_compressed_messages_need_no_setting_at_the_consumer(
    broker: Broker, client: Client, codec: CompressionType, batching: bool
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, compression_type=codec, batching_enabled=batching)
    plain = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    sent = [b"%d" % number * 2000 for number in range(6)]
    for value in sent:
        producer.send_async(value, None)
    producer.flush()
    plain.send(b"plain")
    assert values(consumer, 7) == [*sent, b"plain"]
    sizes = [block.header.payload_length for _, _, block in broker.stored_blocks(topic)]
    assert (sum(sizes[:-1]) < 6000) == (codec != CompressionType.NONE)


def test_everything_a_message_has_arrives(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    for batching in (False, True):
        producer = client.create_producer(topic, producer_name=f"p-{batching}", batching_enabled=batching)
        producer.send(
            b"value",
            properties={"b": "2", "ä": ""},
            partition_key="k",
            ordering_key="o",
            event_timestamp=1234,
        )
        producer.send(None, partition_key="gone")
        producer.send(b"")
        full, tombstone, empty = receive(consumer, 3)
        assert (full.data(), full.value(), full.partition_key(), full.ordering_key()) == (
            b"value",
            b"value",
            "k",
            "o",
        )
        assert (full.properties(), full.event_timestamp()) == ({"b": "2", "ä": ""}, 1234)
        assert full.producer_name() == f"p-{batching}"
        assert full.publish_timestamp() > 1_600_000_000_000
        assert (full.schema_version(), full.encryption_context(), full.has_null_value()) == ("", None, False)
        assert (tombstone.has_null_value(), tombstone.data(), tombstone.value()) == (True, b"", None)
        assert tombstone.partition_key() == "gone"
        assert (empty.has_null_value(), empty.data(), empty.partition_key(), empty.ordering_key()) == (
            False,
            b"",
            "",
            "",
        )
        assert (empty.properties(), empty.event_timestamp()) == ({}, 0)


def test_sequence_ids_count_from_zero_or_from_what_is_given(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    assert producer.last_sequence_id() == -1
    producer.send(b"a")
    producer.send(b"b")
    assert producer.last_sequence_id() == 1
    producer.send(b"c", sequence_id=10)
    producer.send(b"d")
    assert producer.last_sequence_id() == 11
    started = client.create_producer(topic, initial_sequence_id=100)
    started.send(b"e")
    assert started.last_sequence_id() == 101
    ids = [block.header.first_sequence_id for _, _, block in broker.stored_blocks(topic)]
    assert ids == [0, 1, 10, 11, 101]
    ids_in_one_batch = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS
    )
    for number in range(4):
        ids_in_one_batch.send_async(b"%d" % number, None)
    ids_in_one_batch.flush()
    assert ids_in_one_batch.last_sequence_id() == 3


def test_a_full_queue_refuses_without_blocking(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=10)
    broker.cluster.kill(topic, keep_down=True)
    results: list[Any] = []
    for value in numbers(0, 15):
        producer.send_async(value, lambda result, _: results.append(result))
    assert results == [Result.ProducerQueueIsFull] * 5
    with pytest.raises(ProducerQueueIsFull):
        producer.send(b"too much")
    broker.cluster.allow(topic)
    producer.flush()
    assert results == [Result.ProducerQueueIsFull] * 5 + [Result.Ok] * 10
    assert broker.stored(topic) == numbers(0, 10)


def test_what_is_sent_in_bulk_fills_the_queue_too(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=10)
    broker.cluster.kill(topic, keep_down=True)
    results: list[Any] = []

    def send_each(values: list[bytes]) -> None:
        for value in values:
            producer.send_async(value, lambda result, _: results.append(result))

    send_each(numbers(0, 2))
    producer.send_many_async(numbers(2, 7), None)
    send_each(numbers(7, 14))
    assert results == [Result.ProducerQueueIsFull] * 4
    broker.cluster.allow(topic)
    producer.flush()
    assert broker.stored(topic) == numbers(0, 10)


def test_a_full_queue_blocks_where_that_is_wanted(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=10, block_if_queue_full=True)
    broker.cluster.kill(topic, keep_down=True)
    done = threading.Event()

    def send() -> None:
        for value in numbers(0, 40):
            producer.send_async(value, None)
        done.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not done.wait(0.3)
    broker.cluster.allow(topic)
    thread.join(30)
    producer.flush()
    assert broker.stored(topic) == numbers(0, 40)


def test_a_message_above_the_limit_is_refused_and_the_producer_stays_usable(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(max_message_size=10_000, netty_max_frame_size_bytes=30_000)
    client, topic = broker.client(), broker.topic()
    for batching in (False, True):
        producer = client.create_producer(topic, batching_enabled=batching)
        with pytest.raises(MessageTooBig):
            producer.send(b"x" * 10_001)
        producer.send(b"x" * 10_000)
    squeezed = client.create_producer(topic, compression_type=CompressionType.ZSTD)
    squeezed.send(b"x" * 1_000_000)
    assert [len(value or b"") for value in broker.stored(topic)] == [10_000, 10_000, 1_000_000]


def test_a_batch_is_cut_before_it_passes_the_limit(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_message_size=10_000, netty_max_frame_size_bytes=30_000)
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS)
    results: list[Any] = []
    for number in range(12):
        producer.send_async(b"%x" % number * 3000, lambda result, _: results.append(result))
    producer.flush()
    assert results == [Result.Ok] * 12
    assert broker.stored(topic) == [b"%x" % number * 3000 for number in range(12)]


def test_a_producer_name_is_busy_while_its_owner_lives(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first = client.create_producer(topic, producer_name="mine")
    with pytest.raises(ProducerBusy):
        broker.client().create_producer(topic, producer_name="mine")
    first.close()
    assert broker.client().create_producer(topic, producer_name="mine").producer_name() == "mine"


def test_a_closed_producer_refuses(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"a")
    producer.close()
    results: list[Any] = []
    producer.send_async(b"b", lambda result, _: results.append(result))
    assert results == [Result.AlreadyClosed]
    for call in (lambda: producer.send(b"c"), producer.flush, producer.close):
        with pytest.raises(AlreadyClosed):
            call()
    assert (producer.topic(), producer.last_sequence_id(), producer.is_connected()) == (topic, 0, False)


def test_a_callback_may_send_and_may_raise(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    left = [20]
    finished = threading.Event()

    def again(result: Any, _message_id: MessageId) -> None:
        left[0] -= 1
        if left[0]:
            producer.send_async(b"%d" % left[0], again)
        else:
            finished.set()
        raise RuntimeError("of the application's own")

    producer.send_async(b"20", again)
    assert finished.wait(30)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert values(consumer, 20) == [b"%d" % number for number in range(20, 0, -1)]
