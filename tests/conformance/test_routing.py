"""Which partition a message goes to, over every carrier."""

from __future__ import annotations

import mmh3
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import HashingScheme, PartitionsRoutingMode
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import Broker, numbers

LONG_MS = 60_000


def java_hash(text: str) -> int:
    value = 0
    for unit in text.encode("utf-16-be")[1::2] if text.isascii() else ():
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


@pytest.mark.parametrize("scheme", list(HashingScheme))
@pytest.mark.parametrize(
    "mode", [PartitionsRoutingMode.RoundRobinDistribution, PartitionsRoutingMode.UseSinglePartition]
)
def test_keyed_messages_go_by_the_chosen_hash(
    broker: Broker, client: Client, scheme: HashingScheme, mode: PartitionsRoutingMode
) -> None:
    topic = broker.topic(partitions=3)
    producer = client.create_producer(topic, hashing_scheme=scheme, message_routing_mode=mode)
    for key in ("a", "hello", "key-1", "key-22"):
        if scheme == HashingScheme.JavaStringHash:
            expected = java_hash(key) % 3
        else:
            expected = (mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF) % 3
        assert producer.send(b"x", partition_key=key).partition() == expected
    # Only an ordering key is keyless for routing; in single mode all of these share a partition.
    keyless = {producer.send(b"x", ordering_key="hello").partition() for _ in range(6)}
    assert len(keyless) == (3 if mode == PartitionsRoutingMode.RoundRobinDistribution else 1)


def test_round_robin_switches_where_a_batch_is_sealed(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=LONG_MS
    )
    ids: list[MessageId] = []
    for value in numbers(0, 24):
        producer.send_async(value, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    stored = [broker.stored_blocks(f"{topic}-partition-{index}") for index in range(3)]
    assert [[len(block.values()) for _, _, block in blocks] for blocks in stored] == [[4, 4]] * 3
    assert len(ids) == 24


def test_a_router_decides_alone(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    seen: list[tuple[bytes, str, dict[str, str], int]] = []

    def route(message: Message, partitions: int) -> int:
        seen.append((message.data(), message.partition_key(), message.properties(), partitions))
        return len(message.data()) % partitions

    producer = client.create_producer(topic, message_router=route)
    assert producer.send(b"four", partition_key="k", properties={"p": "q"}).partition() == 1
    assert producer.send(b"five5").partition() == 2
    assert seen == [(b"four", "k", {"p": "q"}, 3), (b"five5", "", {}, 3)]
    with pytest.raises(ValueError, match="partition"):
        client.create_producer(topic, message_router=lambda _message, _partitions: 3).send(b"x")
