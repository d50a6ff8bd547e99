"""The broker's own messages at a partition: answered when they are durable, refused as a producer's are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pulsar_ray.broker.partition.publishing.own_messages import PRODUCER_NAME, OwnMessages
from pulsar_ray.broker.partition.publishing.publish_gate import ClosedBy
from pulsar_ray.errors import BrokerPersistenceError, DiskSpaceLow
from pulsar_ray.managed_ledger.log.memory_log import NOT_STORED
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.broker.partition.publishing.test_publish_intake import Partition


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """Let everything run that is ready, twice: a task's first step schedules a commit."""
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()


def test_a_message_is_answered_once_it_is_durable_and_its_producer_leaves(
    loop: asyncio.AbstractEventLoop,
) -> None:
    partition = Partition(loop)
    own = OwnMessages(partition.producers, partition._intake, ManualClock())
    for _ in range(2):
        calls = [loop.create_task(own.append("key", value)) for value in ("a", "b")]
        turn(loop)
        assert not any(call.done() for call in calls)
        assert PRODUCER_NAME in partition.producers.by_name
        partition.disk.write()
        turn(loop)
        assert [call.result() for call in calls] == [NOT_STORED, NOT_STORED]
        assert PRODUCER_NAME not in partition.producers.by_name


def test_a_refusal_is_raised_and_the_next_message_is_stored(loop: asyncio.AbstractEventLoop) -> None:
    partition = Partition(loop)
    own = OwnMessages(partition.producers, partition._intake, ManualClock())
    partition.gate.set(ClosedBy.DISK_SPACE, DiskSpaceLow("full"))
    with pytest.raises(DiskSpaceLow, match="full"):
        loop.run_until_complete(own.append("key", "a"))
    partition.gate.set(ClosedBy.DISK_SPACE, None)
    partition.disk.errors += [OSError("broken"), OSError("broken")]
    failed = loop.create_task(own.append("key", "b"))
    turn(loop)
    partition.disk.write()
    partition.disk.write()
    turn(loop)
    with pytest.raises(BrokerPersistenceError, match="broken"):
        failed.result()
    stored = loop.create_task(own.append("key", "c"))
    turn(loop)
    partition.disk.write()
    turn(loop)
    assert stored.result() == NOT_STORED
    assert partition.fatal == []
