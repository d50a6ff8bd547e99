"""Blocks as a consumer receives them, made by the real encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_ray.client.producer.batch import Batch
from pulsar_ray.client.producer.batch_builder import BatchBuilder, BatchLimits
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.format.payload import DecodedBlock, decode_block
from pulsar_ray.testing.manual_clock import ManualClock

TOPIC = "persistent://public/default/orders"


def decoded(sealed: Batch, *, codec: int = 0, schema_version: bytes | None = None) -> DecodedBlock:
    """What a consumer reads of a sealed batch of the producer "maker", incarnation 7, entry_seq 40."""
    buffers = sealed.encode(
        incarnation=7, entry_seq=40, producer_name="maker", codec=codec, schema_version=schema_version
    )
    return decode_block(b"".join(bytes(buffer) for buffer in buffers))


def received(
    values: Sequence[bytes | None],
    *,
    is_batching: bool = True,
    keys: Sequence[str | None] | None = None,
    ordering_keys: Sequence[str | None] | None = None,
    properties: Sequence[Mapping[str, str] | None] | None = None,
    event_times: Sequence[int | None] | None = None,
    now_ms: int = 1_700_000_000_000,
    topic_name: str = TOPIC,
    partition: int = -1,
    ledger_id: int = 3,
    first_entry_id: int = 0,
    redelivery_count: int = 0,
    schema_version: bytes | None = None,
) -> ReceivedBlock:
    """One block of these messages; one message without batching is a plain entry."""
    limits = BatchLimits(is_batching=is_batching, max_messages=8192, max_bytes=1 << 20)
    builder = BatchBuilder(limits, ManualClock(now_ms))
    for row, value in enumerate(values):
        fields = MessageFields(
            keys[row] if keys else None,
            ordering_keys[row] if ordering_keys else None,
            properties[row] if properties else None,
            event_times[row] if event_times else None,
        )
        builder.add(value, None, fields)
    builder.seal()
    (sealed,) = builder.take_sealed()
    return ReceivedBlock(
        decoded(sealed, schema_version=schema_version),
        topic_name=topic_name,
        partition=partition,
        ledger_id=ledger_id,
        first_entry_id=first_entry_id,
        redelivery_count=redelivery_count,
    )
