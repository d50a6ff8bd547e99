"""Consumers of several topics in the asyncio client, over every carrier."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_ray.model.enums import ConsumerType
from tests.conformance.broker import Broker
from tests.conformance.event_loop import on_a_loop, receive, until, values

SOON_S = 5.0
"""Well below the operation timeout."""


@pytest.mark.parametrize("receipts", [False, True])
@on_a_loop
async def test_what_is_acknowledged_of_a_deleted_topic_is_nobodys_concern(
    broker: Broker, receipts: bool
) -> None:
    gone, kept = topics = [broker.topic(), broker.topic()]
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(
            topics, "s", ConsumerType.Shared, ack_receipt_enabled=receipts,
            auto_update_partitions_interval_seconds=1,
        )  # fmt: skip
        for topic in topics:
            async with await client.create_producer(topic) as producer:
                await producer.send(b"1")
        messages = await receive(consumer, 2)
        await asyncio.to_thread(broker.cluster.delete_topic, gone)
        core = consumer._inner.core  # type: ignore[union-attr]
        await until(lambda: [partition.route.topic for partition in core.partitions.all] == [kept])
        for message in messages:
            await asyncio.wait_for(consumer.acknowledge(message), SOON_S)
        async with await client.create_producer(kept) as producer:
            await producer.send(b"2")
        assert await values(consumer, 1) == [b"2"]


@on_a_loop
async def test_a_pattern_finds_what_appears_within_the_period_that_is_given(broker: Broker) -> None:
    name = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(
            f"{name}-.*", "s", is_pattern_topic=True, pattern_auto_discovery_period=1
        )
        async with await client.create_producer(f"{name}-late") as producer:
            await producer.send(b"1")
        assert await values(consumer, 1) == [b"1"]
