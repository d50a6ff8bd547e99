"""Threads acknowledge messages of one block without a lock, while others send what was acknowledged."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

from pulsar_ray.client.acks.ack_tracker import AckBatch, AckTracker, RowFlags
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.block_decoder import SegmentFiles
from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.row_sets import ranges_in
from tests.unit.client.blocks import received

NEVER = 1 << 60


class Subscribed:
    """A consumer of one partition, and what a dispatcher was told of it."""

    def __init__(self) -> None:
        core = ConsumerCore(ConsumerOptions(topic="t", subscription_name="s"), "c", "s", SegmentFiles())
        self.lock = core.lock
        self.acks = AckTracker(batch_index_ack=True)
        self.gathered = NEVER
        self.told: set[tuple[int, int]] = set()
        """(first entry id of the block, row)."""
        partition: Any = self
        partition.ack_sender = self
        core.partitions.single = partition
        client: Any = self
        self.operation_timeout_s = 1.0
        self.consumer = Consumer(client, "t", core)

    def send(self, blocks: dict[int, ReceivedBlock]) -> None:
        """Tell the dispatcher what was gathered; `blocks` by each of their entries."""
        with self.lock:
            drained = self.acks.drain() or AckBatch([], [], None)
        bits = chain.from_iterable(map(ranges_in, drained.entry_bits))
        for _, first, last in chain(drained.ranges, bits):
            for entry_id in range(first, last + 1):
                block = blocks[entry_id]
                rows = range(block.message_count) if block.is_batch else (entry_id - block.first_entry_id,)
                self.told |= {(block.first_entry_id, row) for row in rows}
        for _, entry_id, ranges in drained.batch_rows:
            self.told |= {(entry_id, row) for first, end in ranges for row in range(first, end)}


def block_of(rows: int, first_entry_id: int, *, is_batch: bool) -> ReceivedBlock:
    return received([b"x"] * rows, is_batching=is_batch, first_entry_id=first_entry_id)


def by_entry(*blocks: ReceivedBlock) -> dict[int, ReceivedBlock]:
    entries: dict[int, ReceivedBlock] = {}
    for block in blocks:
        count = 1 if block.is_batch else block.message_count
        entries |= dict.fromkeys(range(block.first_entry_id, block.first_entry_id + count), block)
    return entries


class Hooked(bytearray):
    """Flags beside whose next one something else happens."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def __setitem__(self, row: Any, flag: Any) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()
        super().__setitem__(row, flag)
        after, self.after = self.after, None
        if after is not None:
            after()


@pytest.mark.parametrize("is_batch", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("rows", [2, 3])
def test_a_row_that_is_flagged_while_others_are_sent_is_sent_too(
    is_batch: bool, when: str, rows: int
) -> None:
    """Of two rows it completes a batch, of three it does not."""
    world, block = Subscribed(), block_of(rows, 5, is_batch=is_batch)
    entries = by_entry(block)
    world.consumer.acknowledge(Message(block, 0))
    hooked = Hooked(world.acks.current.flags)
    if is_batch:
        world.acks._partial[3, 5].acknowledged = hooked
    else:
        world.acks._entries[3, 5] = hooked
    world.acks.current = RowFlags(block, hooked)
    setattr(hooked, when, lambda: world.send(entries))
    world.consumer.acknowledge(Message(block, 1))
    world.send(entries)
    assert world.told == {(5, 0), (5, 1)}
    with world.lock:
        left = world.acks.outstanding_rows(3, 5, (1 << rows) - 1, rows)
    if is_batch and rows == 3:
        assert left == 0b100


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_quick_switches")
def test_many_threads_acknowledge_and_nothing_is_lost() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    choose = random.Random(seed)
    blocks = [block_of(200, 1000 * n, is_batch=n % 2 == 0) for n in range(1, 13)]
    messages = [Message(block, row) for block in blocks for row in range(200)]
    # Near each other, as consumers take them: the block is mostly the one before, and sometimes not.
    messages.sort(key=lambda message: message.block.first_entry_id + choose.randrange(1500))
    world, entries = Subscribed(), by_entry(*blocks)
    left = threading.Semaphore(0)

    def acknowledge(part: list[Message]) -> None:
        for message in part:
            world.consumer.acknowledge(message)
        left.release()

    threads = [threading.Thread(target=acknowledge, args=(messages[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    ended = 0
    while ended < len(threads):
        world.send(entries)
        ended += left.acquire(timeout=0.0001)
    for thread in threads:
        thread.join()
    world.send(entries)
    assert world.told == {(message.block.first_entry_id, message.row) for message in messages}
