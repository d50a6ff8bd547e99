"""Keyless messages of batching producers take turns over the partitions, batch by batch."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import ProducerQueueIsFull, Result
from pulsar_ray.model.enums import BatchingType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers
from tests.conformance.event_loop import on_a_loop, until

SLOW = 60_000


def batching(client: Client, topic: str, **options: Any) -> Producer:
    options = {"batching_max_publish_delay_ms": SLOW, **options}
    return client.create_producer(topic, batching_enabled=True, **options)


def batches(broker: Broker, topic: str, partitions: int) -> list[list[list[bytes | None]]]:
    """The values of each stored batch, by partition."""
    return [
        [block.values() for _, _, block in broker.stored_blocks(f"{topic}-partition-{index}")]
        for index in range(partitions)
    ]


def in_turns(stored: list[list[list[bytes | None]]]) -> list[list[bytes | None]]:
    """The batches in the order of turns, from the partition on that got the first message."""
    first = min(range(len(stored)), key=lambda index: stored[index][0][0] or b"")
    ordered = stored[first:] + stored[:first]
    longest = max(map(len, stored))
    return [own[turn] for turn in range(longest) for own in ordered if turn < len(own)]


def tell(stored: threading.Event) -> Any:
    return lambda _result, _id: stored.set()


def sized(count: int, size: int, first: int = 0) -> list[bytes]:
    return [(b"%d " % number).ljust(size, b".") for number in range(first, first + count)]


def test_a_message_that_does_not_fit_opens_the_batch_of_the_next_partition(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic(partitions=2)
    producer = batching(client, topic, batching_max_allowed_size_in_bytes=1000)
    values = sized(9, 300)
    for value in values:
        producer.send_async(value, None)
    producer.flush()
    assert in_turns(batches(broker, topic, 2)) == [values[:3], values[3:6], values[6:]]


def test_flushes_synchronous_sends_and_large_messages_end_a_turn(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    producer = batching(client, topic, batching_max_allowed_size_in_bytes=1000, batching_max_messages=3)
    values = sized(12, 100)
    values[7] = values[7].ljust(3000, b".")
    for value in values[:2]:
        producer.send_async(value, None)
    producer.flush()
    producer.send_async(values[2], None)
    producer.send(values[3])
    for value in values[4:]:  # 4 5 6 by count, 7 alone, 8 9 10 by count, 11 by closing
        producer.send_async(value, None)
    producer.close()
    expected = [values[0:2], values[2:4], values[4:7], values[7:8], values[8:11], values[11:]]
    assert in_turns(batches(broker, topic, 3)) == expected


def test_a_batch_that_is_due_ends_its_turn(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    producer = batching(client, topic, batching_max_publish_delay_ms=1)
    for value in numbers(0, 6):
        stored = threading.Event()
        producer.send_async(value, tell(stored))
        assert stored.wait(20)
    assert [len(own) for own in batches(broker, topic, 2)] == [3, 3]


@pytest.mark.parametrize("batching_type", [BatchingType.Default, BatchingType.KeyBased])
def test_keyed_messages_go_to_their_partitions_and_take_no_turn(
    broker: Broker, client: Client, batching_type: BatchingType
) -> None:
    topic = broker.topic(partitions=2)
    producer = batching(client, topic, batching_max_allowed_size_in_bytes=1000, batching_type=batching_type)
    keys = {"a": 1, "hello": 0}  # and where they go
    sent: dict[bytes, int] = {}

    def note(value: bytes) -> Any:
        return lambda _result, message_id: sent.__setitem__(value, message_id.partition())

    # Batches of keyed messages alone fill up and are sealed, while keyless ones wait for more.
    keyless = sized(2, 10)
    producer.send_async(keyless[0], note(keyless[0]))
    producer.send_async(keyless[1], note(keyless[1]))
    producer.flush()
    first = sent[keyless[0]]
    other_key = next(key for key, partition in keys.items() if partition == first)
    keyed = sized(5, 400, 100)
    for value in keyed:
        producer.send_async(value, note(value), partition_key=other_key)
    more = sized(2, 10, 2)
    for value in more:
        producer.send_async(value, note(value))
    producer.flush()
    assert [sent[value] for value in keyless + more] == [first, first, 1 - first, 1 - first]
    assert {sent[value] for value in keyed} == {first}
    # A message in turn that finds no room in a batch of keyed ones ends that batch and stays.
    for value in sized(1, 10, 4):
        producer.send_async(value, note(value))
    producer.flush()
    producer.send_async(b"5".ljust(900), note(b"5"), partition_key=next(k for k in keys if keys[k] != first))
    producer.send_async(b"6".ljust(900), note(b"6"))
    producer.flush()
    assert sent[b"6"] == 1 - first


def test_a_custom_router_is_asked_once_for_each_message(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    asked: list[bytes] = []

    def route(message: Any, count: int) -> int:
        asked.append(message.data())
        return len(asked) % count

    producer = batching(client, topic, message_router=route, batching_max_allowed_size_in_bytes=1000)
    values = sized(12, 300)
    for value in values:
        producer.send_async(value, None)
    producer.close()
    assert asked == values


def test_a_full_partition_passes_its_turn_on_or_is_waited_for(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    refusing = batching(client, topic, max_pending_messages=5)
    for index in range(2):
        broker.cluster.kill(f"{topic}-partition-{index}", keep_down=True)
    wait_until(lambda: not any(p.is_connected for p in refusing._partitions), what="the connections' end")
    results: list[Any] = []
    for value in numbers(0, 12):
        refusing.send_async(value, lambda result, _id: results.append(result))
    assert results == [Result.ProducerQueueIsFull] * 2
    with pytest.raises(ProducerQueueIsFull):
        refusing.send(b"one more")
    for index in range(2):
        broker.cluster.allow(f"{topic}-partition-{index}")
    refusing.close()
    assert in_turns(batches(broker, topic, 2)) == [numbers(0, 5), numbers(5, 10)]


def test_blocked_producers_take_turns(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    producer = batching(client, topic, max_pending_messages=7, block_if_queue_full=True)

    def sender(first: int) -> None:
        for value in numbers(first, first + 200):
            producer.send_async(value, None)

    threads = [threading.Thread(target=sender, args=(first,)) for first in (1000, 2000, 3000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    producer.close()
    stored = batches(broker, topic, 3)
    values = [value for own in stored for batch in own for value in batch]
    assert sorted(values) == sorted([*numbers(1000, 1200), *numbers(2000, 2200), *numbers(3000, 3200)])  # type: ignore[type-var]
    assert max(map(len, stored)) - min(map(len, stored)) <= 1
    for own in stored:
        for first in (1000, 2000, 3000):
            of_thread = [v for batch in own for v in batch if v in set(numbers(first, first + 200))]
            assert of_thread == sorted(of_thread)


def test_threads_strand_no_message(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    producer = batching(client, topic, batching_max_messages=10)

    def sender() -> None:
        for _ in range(500):
            producer.send_async(b"v", None)

    threads = [threading.Thread(target=sender) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    producer.close()
    assert [[len(batch) for batch in own] for own in batches(broker, topic, 2)] == [[10] * 100] * 2


def test_bulk_sends_take_one_turn_for_each_batch(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    producer = batching(client, topic)
    values = numbers(0, 9)
    producer.send_async(b"0 open", None)
    producer.send_many(values)  # the open batch has the turn before it
    producer.send_async(b"first", None)
    producer.send_async(b"second", None)
    producer.flush()
    producer.send_many(values)
    producer.close()
    assert in_turns(batches(broker, topic, 2)) == [[b"0 open"], values, [b"first", b"second"], values]


def test_partitions_that_come_later_take_turns_too(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=1)
    producer = batching(client, topic, batching_max_messages=2, auto_update_partitions_interval_seconds=1)
    producer.send_async(b"0 open", None)
    broker.admin().topics.update_partitioned_topic(topic, 3)
    wait_until(lambda: producer.partition_count == 3, what="3 partitions")
    values = numbers(1, 6)
    for value in values:
        producer.send_async(value, None)
    producer.close()
    assert batches(broker, topic, 3) == [[[b"0 open", values[0]]], [values[1:3]], [values[3:5]]]


@on_a_loop
@pytest.mark.parametrize("blocks", [False, True])
async def test_tasks_of_a_loop_take_turns(broker: Broker, blocks: bool) -> None:
    topic = broker.topic(partitions=2)
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(
            topic,
            batching_max_publish_delay_ms=SLOW,
            batching_max_allowed_size_in_bytes=1000,
            block_if_queue_full=blocks,
            max_pending_messages=9 if blocks else 1000,
        )
        values = sized(30, 300)
        sends = [asyncio.ensure_future(producer.send(value)) for value in values]
        await until(lambda: sum(send.done() for send in sends) >= 21)
        await producer.flush()
        await asyncio.wait(sends, timeout=20)
    ids = [send.result() for send in sends]
    assert all(isinstance(message_id, MessageId) for message_id in ids)
    stored = in_turns(batches(broker, topic, 2))
    assert [value for batch in stored for value in batch] == values
    # Waiting for room ends a batch early.
    assert blocks or {len(batch) for batch in stored} == {3}
