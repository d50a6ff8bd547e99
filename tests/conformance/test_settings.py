"""What the broker's settings do to producers and to what is stored, over every carrier."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.config import MIB
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, Broker, numbers, values

MakeBroker = Callable[..., Broker]


def test_consumed_ledgers_go_at_the_next_retention_check(make_broker: MakeBroker) -> None:
    broker = make_broker(
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=10,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    other = client.subscribe(topic, "other", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 25)]
    assert values(consumer, 25, acknowledge=True) == numbers(0, 25)
    assert values(other, 15, acknowledge=True) == numbers(0, 15)
    wait_until(
        lambda: broker.first_stored(topic) == (ids[10].ledger_id(), 0), what="the first ledger is gone"
    )
    assert broker.stored(topic) == numbers(10, 25)
    again = client.subscribe(topic, "from the first on", initial_position=EARLIEST)
    assert values(again, 15) == numbers(10, 25)


def test_a_subscription_that_the_disk_refused_keeps_nothing(make_broker: MakeBroker) -> None:
    broker = make_broker(
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=10,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    client, topic = broker.client(operation_timeout_seconds=5), broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 25)]
    broker.cluster.disk.fail("fdatasync", errno.ENOSPC)
    with pytest.raises(BrokerPersistenceError):
        client.subscribe(topic, "refused", initial_position=EARLIEST)
    assert values(consumer, 25, acknowledge=True) == numbers(0, 25)
    wait_until(
        lambda: broker.first_stored(topic) == (ids[20].ledger_id(), 0), what="consumed ledgers are gone"
    )


@pytest.mark.parametrize("batching", [False, True])
def test_bulk_sends_keep_to_the_block_limits(make_broker: MakeBroker, batching: bool) -> None:
    broker = make_broker(max_block_rows=10, max_block_bytes=4096)
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic, batching_enabled=batching)
    producer.send_many(numbers(0, 25))
    producer.send_arrow(pa.table({"value": numbers(25, 50)}))
    large = [bytes([number]) * 1500 for number in range(6)]
    producer.send_many(large)
    producer.send_arrow(pa.table({"value": large}))
    blocks = [block for _, _, block in broker.stored_blocks(topic)]
    assert [block.header.message_count for block in blocks] == [10, 10, 5, 10, 10, 5, 2, 2, 2, 2, 2, 2]
    assert broker.stored(topic) == [*numbers(0, 50), *large, *large]


def test_bulk_sends_fit_a_small_largest_message(make_broker: MakeBroker) -> None:
    broker = make_broker(max_message_size=8192)
    client, topic = broker.client(), broker.topic()
    sent = [b"%d" % number * 100 for number in range(200)]
    client.create_producer(topic).send_many(sent)
    client.create_producer(topic, batching_enabled=True).send_arrow(pa.table({"value": sent}))
    assert broker.stored(topic) == [*sent, *sent]


def test_an_actor_reads_no_more_than_its_budget_ahead_of_its_disk(make_broker: MakeBroker) -> None:
    broker = make_broker(lane_buffer_budget_bytes=16 * MIB)
    if broker.transport not in ("socket", "tcp"):
        pytest.skip("the tunnel has no socket to leave bytes in")
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic, block_if_queue_full=True)
    producer.send(b"first")
    budget = broker.cluster.partition(topic).host.lanes.budget
    highest = 0
    retain = budget.retain

    def watched(lane: Any, count: int) -> None:
        nonlocal highest
        retain(lane, count)
        highest = max(highest, budget.retained_bytes)

    budget.retain = watched  # type: ignore[method-assign]
    synced = threading.Event()

    def held_up(call: str) -> None:
        if call == "fdatasync":
            synced.wait(30)

    broker.cluster.disk.before = held_up
    value = bytes(MIB)

    def send() -> None:
        for _ in range(40):
            producer.send_async(value, None)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_until(lambda: budget.retained_bytes > 8 * MIB, what="the connection's half is used up")
    finally:
        synced.set()
    sender.join()
    producer.flush()
    assert 8 * MIB < highest <= 16 * MIB
    assert broker.stored(topic) == [b"first", *[value] * 40]
