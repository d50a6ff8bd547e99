"""Holes in what a dispatcher has in memory of the log: it reads the files again."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray import Client, ConsumerType
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from tests.conformance.broker import Broker, numbers, values

TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_ray.broker.subscription.log.reading_watch.STANDS_MS", 500)


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
    assert values(consumer, 4, acknowledge=True) == [*numbers(0, 2), *numbers(4, 6)]
    assert values(consumer, 2, acknowledge=True) == numbers(2, 4)
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
