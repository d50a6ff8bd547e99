"""Encrypted messages, over every carrier: brokers deliver them, and those who have the key read them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.encryption.payload_decrypter import PayloadDecrypter
from pulsar_ray.client.options.crypto_key_reader import CryptoKeyReader
from pulsar_ray.client.options.policies import ConsumerBatchReceivePolicy, ConsumerDeadLetterPolicy
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import CryptoError, InvalidConfiguration, MessageTooBig
from pulsar_ray.format.block import MAX_MESSAGE_SIZE
from pulsar_ray.format.encrypted_block import TAG_BYTES
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.security.keys import asymmetric_key, read_source
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, keyed_numbers, receive, values
from tests.conformance.chunking import CHUNK_BYTES, backlog, large
from tests.conformance.event_loop import on_a_loop
from tests.rsa_keys import key_reader

Quiet = Callable[[Consumer], None]
FAIL, DISCARD, CONSUME = ConsumerCryptoFailureAction
SHARED = ConsumerType.Shared


def encrypting(client: Client, topic: str, **arguments: Any) -> Producer:
    keys = {"encryption_key": "app", "crypto_key_reader": key_reader("ours")}
    return client.create_producer(topic, **{**keys, **arguments})


def reading(client: Client, topic: str, name: str = "s", **arguments: Any) -> Consumer:
    return client.subscribe(topic, name, crypto_key_reader=key_reader("ours"), **arguments)


def send_together(producer: Producer, sent: list[bytes], **arguments: Any) -> list[MessageId]:
    ids: list[MessageId] = []
    for value in sent:
        producer.send_async(value, lambda _, message_id: ids.append(message_id), **arguments)
    producer.flush()
    return ids


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
@pytest.mark.parametrize("batching", [False, True])
def test_those_who_have_the_key_get_what_was_sent(
    broker: Broker, client: Client, batching: bool, codec: CompressionType
) -> None:
    topic = broker.topic()
    consumer = reading(client, topic)
    producer = encrypting(client, topic, batching_enabled=batching, compression_type=codec)
    sent = [b"secret %d" % number * 20 for number in range(5)]
    ids = send_together(producer, sent, partition_key="k", properties={"p": "q"}, event_timestamp=7)
    assert_encrypted(broker, topic, sent)
    for value, message_id in zip(sent, ids, strict=True):
        message = consumer.receive(WAIT_MS)
        assert (message.data(), message.message_id()) == (value, message_id)
        assert (message.partition_key(), message.properties()) == ("k", {"p": "q"})
        assert message.event_timestamp() == 7
        context = message.encryption_context()
        assert context is not None
        (key,) = context.keys()
        assert (key.key, key.metadata, len(key.value)) == ("app", {}, 256)
        assert (len(context.param()), context.algorithm()) == (12, "")
        assert (context.compression_type(), context.batch_size()) == (codec, 5 if batching else -1)
        assert context.uncompressed_message_size() >= len(value)
        assert not context.is_decryption_failed()
        consumer.acknowledge(message)
    wait_until(lambda: backlog(broker, topic) == 0)
    reader = client.create_reader(topic, MessageId.earliest, crypto_key_reader=key_reader("ours"))
    assert [reader.read_next(WAIT_MS).data() for _ in sent] == sent


def assert_encrypted(broker: Broker, topic: str, sent: list[bytes]) -> None:
    """Nothing of it is in the log."""
    server = broker.cluster.partition(topic).server
    assert server is not None
    for _, _, path, *_ in server.calls.describe_log()["segments"]:
        assert not any(value in Path(path).read_bytes() for value in sent)


@pytest.mark.parametrize("name", [None, "another"])
@pytest.mark.parametrize("batching", [False, True])
def test_without_the_key_messages_are_withheld_until_somebody_has_it(
    broker: Broker, client: Client, assert_quiet: Quiet, batching: bool, name: str | None
) -> None:
    topic = broker.topic()
    reader = None if name is None else key_reader(name)
    consumer = client.subscribe(topic, "s", SHARED, crypto_key_reader=reader)
    send_together(encrypting(client, topic, batching_enabled=batching), [b"1", b"2", b"3"])
    client.create_producer(topic).send(b"clear")
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.encryption_context()) == (b"clear", None)
    consumer.acknowledge(message)
    assert_quiet(consumer)
    consumer.close()
    later = reading(client, topic, consumer_type=SHARED)
    assert values(later, 3, acknowledge=True) == [b"1", b"2", b"3"]
    wait_until(lambda: backlog(broker, topic) == 0)


@pytest.mark.parametrize("batching", [False, True])
def test_what_is_withheld_becomes_no_dead_letter(
    broker: Broker, client: Client, assert_quiet: Quiet, batching: bool
) -> None:
    """However often it comes: somebody may have the key later."""
    topic = broker.topic()
    policy = ConsumerDeadLetterPolicy(1, f"{topic}-dead", "d")
    consumer = client.subscribe(topic, "s", SHARED, dead_letter_policy=policy)
    send_together(encrypting(client, topic, batching_enabled=batching), [b"1", b"2", b"3"])
    for _ in range(4):
        assert_quiet(consumer)
        consumer.redeliver_unacknowledged_messages()
    assert_quiet(consumer)
    consumer.close()
    later = reading(client, topic, consumer_type=SHARED)
    assert values(later, 3, acknowledge=True) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("batching", [False, True])
def test_what_cannot_be_decrypted_is_discarded(
    broker: Broker, client: Client, assert_quiet: Quiet, batching: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", crypto_failure_action=DISCARD)
    send_together(encrypting(client, topic, batching_enabled=batching), [b"1", b"2", b"3"])
    assert_quiet(consumer)
    wait_until(lambda: backlog(broker, topic) == 0)


@pytest.mark.parametrize("kind", list(ConsumerType))
@pytest.mark.parametrize("queue_size", [1, 1000])
def test_what_cannot_be_decrypted_is_handed_out_as_it_is(
    broker: Broker, client: Client, assert_quiet: Quiet, kind: ConsumerType, queue_size: int
) -> None:
    topic = broker.topic()
    arguments: dict[str, Any] = {"crypto_failure_action": CONSUME, "receiver_queue_size": queue_size}
    consumer = client.subscribe(topic, "s", kind, negative_ack_redelivery_delay_ms=100, **arguments)
    ids = send_together(encrypting(client, topic, batching_enabled=True), [b"1", b"2", b"3"])
    alone = encrypting(client, topic).send(b"alone")
    whole = consumer.receive(WAIT_MS)
    context = whole.encryption_context()
    assert context is not None
    assert (context.is_decryption_failed(), context.batch_size()) == (True, 3)
    place = MessageId(-1, ids[0].ledger_id(), ids[0].entry_id())
    assert whole.message_id() == place, "a batch is one message"
    consumer.negative_acknowledge(whole)
    if kind is SHARED or kind is ConsumerType.KeyShared:
        second = consumer.receive(WAIT_MS)
        whole = consumer.receive(WAIT_MS)
    else:
        # A negative acknowledgment takes them back to it.
        wait_until(lambda: consumer.receive(WAIT_MS).message_id() == place, what="the batch again")
        second = consumer.receive(WAIT_MS)
    assert (whole.message_id(), second.message_id()) == (place, alone)
    assert second.encryption_context().batch_size() == -1  # type: ignore[union-attr]
    assert len(second.data()) == len(b"alone") + TAG_BYTES
    consumer.acknowledge(place)
    consumer.acknowledge(second)
    assert_quiet(consumer)
    wait_until(lambda: backlog(broker, topic) == 0)


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_a_batch_that_is_acknowledged_late_is_not_handed_out_again(
    broker: Broker, client: Client, assert_quiet: Quiet, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind, crypto_failure_action=CONSUME)
    send_together(encrypting(client, topic, batching_enabled=True), [b"1", b"2", b"3"])
    whole = consumer.receive(WAIT_MS)
    consumer.redeliver_unacknowledged_messages()
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgOutCounter"] >= 6,
            what="it was delivered again",
        )
    consumer.acknowledge(whole)
    assert_quiet(consumer)
    wait_until(lambda: backlog(broker, topic) == 0)


def test_tables_and_lists_are_encrypted_too(broker: Broker, client: Client) -> None:
    for batching in (False, True):
        topic = broker.topic()
        policy = ConsumerBatchReceivePolicy(4, -1, WAIT_MS)
        consumer = reading(client, topic, batch_receive_policy=policy)
        arrow = reading(client, topic, "arrow")
        producer = encrypting(client, topic, batching_enabled=batching)
        producer.send_many([b"1", None], partition_keys=["a", "b"])
        producer.send_arrow(pa.table({"value": [b"3", b"4"], "key": ["c", "d"]}))
        found = [(message.partition_key(), message.data()) for message in consumer.batch_receive()]
        assert found == [("a", b"1"), ("b", b""), ("c", b"3"), ("d", b"4")]
        decrypt = PayloadDecrypter(key_reader("ours"))
        blocks = broker.stored_blocks(topic, decrypt)
        assert len(blocks) == (2 if batching else 4), "an entry whose key is to be seen has its own block"
        due_ms = time.time_ns() // 1_000_000 + 60_000
        producer.send_many([b"5", b"6"], partition_keys=["e", "f"], deliver_at=due_ms)
        producer.send_arrow(
            pa.table({"value": [b"7", b"8"], "key": ["g", "h"], "deliver_at": [due_ms, None]})
        )
        delayed = [block for _, _, block in broker.stored_blocks(topic, decrypt)[len(blocks) :]]
        assert [block.metadata.key for block in delayed] == ["e", "f", "g", "h"]
        assert [block.metadata.deliver_at for block in delayed] == [due_ms, due_ms, due_ms, None]
        rows = 0
        while rows < 4:
            rows += arrow.receive_arrow(4, WAIT_MS).num_rows


@pytest.mark.parametrize(
    "arguments", [{}, {"batching_enabled": True, "batching_type": BatchingType.KeyBased}]
)
def test_keys_stay_with_their_consumers(broker: Broker, client: Client, arguments: dict[str, Any]) -> None:
    topic = broker.topic()
    consumers = [reading(client, topic, consumer_type=ConsumerType.KeyShared) for _ in range(2)]
    producer = encrypting(client, topic, **arguments)
    for number in range(40):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 8}")
    producer.flush()
    found = keyed_numbers(consumers, 40)
    of_each = [{key for place, key, _ in found if place == which} for which in (0, 1)]
    assert all(of_each)
    assert not of_each[0] & of_each[1]
    for key in set.union(*of_each):
        assert [number for _, of, number in found if of == key] == [*range(int(key[1:]), 40, 8)]


def test_chunks_are_encrypted(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    consumer = reading(client, topic)
    without = client.subscribe(topic, "without")
    consuming = client.subscribe(topic, "consuming", crypto_failure_action=CONSUME)
    producer = encrypting(client, topic, chunking_enabled=True, chunk_max_message_size=CHUNK_BYTES)
    sent = producer.send(large(1))
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.message_id()) == (large(1), sent)
    assert len(consuming.receive(WAIT_MS).data()) == len(large(1)) + 5 * TAG_BYTES
    assert_quiet(without)


def test_what_was_stored_of_an_encrypted_batch_is_not_stored_again(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(broker_deduplication_enabled=True)
    client, topic = broker.client(), broker.topic()
    consumer = reading(client, topic, initial_position=EARLIEST)
    first = encrypting(client, topic, producer_name="p")
    for number in range(3):
        first.send(b"%d" % number, sequence_id=number)
    first.close()
    again = encrypting(client, topic, producer_name="p", batching_enabled=True)
    for number in range(1, 5):
        again.send_async(b"%d" % number, None, sequence_id=number)
    again.flush()
    assert values(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_the_largest_message_is_a_tag_smaller(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = reading(client, topic)
    producer = encrypting(client, topic)
    largest = bytes(MAX_MESSAGE_SIZE - TAG_BYTES)
    producer.send(largest)
    assert consumer.receive(WAIT_MS).data() == largest
    with pytest.raises(MessageTooBig):
        producer.send(largest + b"1")


def test_topics_that_store_nothing_carry_encrypted_messages(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = "non-persistent://public/default/encrypted"
    consumer, without = reading(client, topic), client.subscribe(topic, "without")
    consuming = client.subscribe(topic, "consuming", crypto_failure_action=CONSUME)
    encrypting(client, topic).send(b"secret")
    assert receive(consumer, 1)[0].data() == b"secret"
    assert consuming.receive(WAIT_MS).encryption_context().is_decryption_failed()  # type: ignore[union-attr]
    assert_quiet(without)


def test_nobody_sends_in_the_clear_by_mistake(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    for arguments in ({"crypto_key_reader": None}, {"encryption_key": None}):
        with pytest.raises(InvalidConfiguration, match="in the clear"):
            encrypting(client, topic, **arguments)
    with pytest.raises(CryptoError, match="cannot be read"):
        encrypting(client, topic, crypto_key_reader=CryptoKeyReader("/nowhere/key", ""))


def test_a_public_key_is_read_once(
    broker: Broker, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that was open already would be left behind by an error."""
    topic, path = broker.topic(partitions=2), tmp_path / "public"
    path.write_bytes(read_source(key_reader("ours").public_key_path, "key"))

    def load_last(*given: Any, **named: Any) -> Any:
        key = asymmetric_key(*given, **named)
        path.unlink()
        return key

    monkeypatch.setattr("pulsar_ray.client.encryption.payload_cipher.asymmetric_key", load_last)
    consumer = reading(client, topic)
    encrypting(client, topic, crypto_key_reader=CryptoKeyReader(str(path), "")).send(b"secret")
    assert consumer.receive(WAIT_MS).data() == b"secret"


@pytest.mark.parametrize("action", [FAIL, DISCARD])
@pytest.mark.parametrize("queue_size", [0, 1])
def test_who_waits_without_a_thread_gets_what_is_behind(
    broker: Broker, client: Client, action: ConsumerCryptoFailureAction, queue_size: int
) -> None:
    topic = broker.topic()
    arguments: dict[str, Any] = {"crypto_failure_action": action, "receiver_queue_size": queue_size}
    consumer = client.subscribe(topic, "s", SHARED, **arguments)
    waiting = [consumer.receive_async() for _ in range(2)]
    for number in range(2):
        send_together(encrypting(client, topic, batching_enabled=True), [b"1", b"2", b"3"])
        client.create_producer(topic).send(b"clear %d" % number)
    assert [each.result(WAIT_MS / 1000).data() for each in waiting] == [b"clear 0", b"clear 1"]


@on_a_loop
async def test_tasks_wait_for_what_can_be_decrypted(broker: Broker) -> None:
    topic, keys = broker.topic(), key_reader("ours")
    async with broker.asyncio_client() as client:
        without = await client.subscribe(topic, "without")
        consumer = await client.subscribe(topic, "s", crypto_key_reader=keys)
        waiting = asyncio.create_task(without.receive())
        secret = await client.create_producer(topic, encryption_key="app", crypto_key_reader=keys)
        sent = [b"%d" % number for number in range(3)]
        await asyncio.gather(*(secret.send(value) for value in sent))
        producer = await client.create_producer(topic)
        await producer.send(b"clear")
        assert (await waiting).data() == b"clear"
        assert [(await consumer.receive(WAIT_MS)).data() for _ in range(4)] == [*sent, b"clear"]
