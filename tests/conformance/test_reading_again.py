"""Holes in what a dispatcher has in memory of the log: it reads the files again."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any

import pytest

from pulsar_ray import Client, ConsumerType, Timeout
from pulsar_ray.broker.subscription.log.log_view import FileRead, LogView
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import QUIET_MS, WAIT_MS, Broker, numbers, values

TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_ray.broker.subscription.log.core_feeder.STANDS_MS", 500)


def plant(monkeypatch: pytest.MonkeyPatch, choose: Any) -> None:
    """Let what is served from memory be what `choose` makes of it."""
    blocks_from = LogView.blocks_from

    def served(view: LogView, *arguments: Any) -> list[BlockRef] | None:
        blocks = blocks_from(view, *arguments)
        return None if blocks is None else choose(blocks)

    monkeypatch.setattr(LogView, "blocks_from", served)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_entries_that_were_passed_over_are_given_after_all(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic, batching_enabled=False)
    plant(monkeypatch, lambda blocks: [ref for ref in blocks if ref.first_entry_id not in (2, 3)])
    for value in numbers(0, 6):
        producer.send(value, partition_key="k")
    # Where the tunnel has lost a packet the first pass is through the files, which have no hole.
    got = [value for _ in range(6) for value in values(consumer, 1, acknowledge=True)]
    assert sorted(got) == numbers(0, 6)
    producer.send(b"behind", partition_key="k")
    assert values(consumer, 1, acknowledge=True) == [b"behind"]


def test_what_nothing_in_memory_leads_to_is_read_from_the_files(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    plant(monkeypatch, lambda _: [])
    client.create_producer(topic).send_many(numbers(0, 6))
    assert values(consumer, 6, acknowledge=True) == numbers(0, 6)


def test_what_was_deleted_before_it_was_read_is_passed_over(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogView, "blocks_from", lambda *_: None)
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    producer = client.create_producer(topic, batching_enabled=False)
    for value in numbers(0, 40):
        producer.send(value)
    held = consumer.receive(WAIT_MS)
    served = broker.served(topic, "s")
    wait_until(lambda: served.core.blocks_wanted() == 0, what="its queue is full")
    broker.admin().topics.truncate(topic)
    wait_until(lambda: not served._feeder._log.view.segments, what="the dispatcher knows of it")
    consumer.acknowledge(held)

    def all_is_read() -> bool:
        if not served.turn.has_work:
            return True
        with suppress(Timeout):  # it may have had the next one already, and its queue is full then
            consumer.receive(QUIET_MS)
        return False

    wait_until(all_is_read, what="nothing is left to be read")
    assert not served.trouble()
    producer.send(b"behind")
    assert values(consumer, 1) == [b"behind"]


def test_a_file_that_the_disk_refused_once_is_no_problem_any_more(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    monkeypatch.setattr(LogView, "blocks_from", lambda *_: None)
    run, refused = FileRead.run, [OSError(errno.EIO, "Input/output error")]

    def run_later(read: FileRead, *arguments: Any, **options: Any) -> ReadBlocks:
        if refused:
            raise refused.pop()
        return run(read, *arguments, **options)

    monkeypatch.setattr(FileRead, "run", run_later)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"first")
    assert values(consumer, 1) == [b"first"]
    assert not refused
    assert not broker.served(topic, "s").trouble()
