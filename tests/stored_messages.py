"""Encoded blocks of messages with values for every column."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.format.block import encode_block
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single
from tests.stored_segments import Block

PUBLISHED_MS = 1_700_000_000_123


def single(
    value: bytes | None, *, sequence_id: int = 0, publish_time_ms: int = PUBLISHED_MS, **metadata: object
) -> Block:
    return encode_single(
        value,
        incarnation=1,
        entry_seq=sequence_id,
        sequence_id=sequence_id,
        publish_time_ms=publish_time_ms,
        metadata=BlockMetadata(**metadata),  # type: ignore[arg-type]
    )


def chunks(value: bytes, count: int, *, incarnation: int = 1, first_seq: int = 0) -> list[Block]:
    """The blocks of one message in so many chunks; its key is `key`."""
    size = -(-len(value) // count)
    return [
        encode_block(
            value[number * size : (number + 1) * size],
            incarnation=incarnation,
            entry_seq=first_seq + number,
            first_sequence_id=first_seq,
            last_sequence_id=first_seq,
            publish_time_ms=PUBLISHED_MS,
            uncompressed_length=len(value),
            metadata=BlockMetadata(
                key="key" if number + 1 == count else None,
                producer_name=f"p{incarnation}",
                chunk=ChunkInfo(f"p{incarnation}-{first_seq}", number, count, len(value)),
            ),
        )
        for number in range(count)
    ]


def batch(
    values: Sequence[bytes | None],
    *,
    first_sequence_id: int = 0,
    row_is_entry: bool = False,
    codec: int = 0,
    producer_name: str = "p",
    keys: Sequence[str | None] | None = None,
    ordering_keys: Sequence[str | None] | None = None,
    properties: Sequence[dict[str, str] | None] | None = None,
    event_times: Sequence[int | None] | None = None,
    sequence_ids: Sequence[int] | None = None,
    publish_time_ms: int = PUBLISHED_MS,
) -> Block:
    payload, columns = encode_rows(values, keys, ordering_keys, properties, event_times, sequence_ids)
    first = sequence_ids[0] if sequence_ids else first_sequence_id
    last = sequence_ids[-1] if sequence_ids else first_sequence_id + len(values) - 1
    return encode_batch(
        payload,
        columns,
        message_count=len(values),
        incarnation=1,
        entry_seq=first_sequence_id,
        first_sequence_id=first,
        last_sequence_id=last,
        publish_time_ms=publish_time_ms,
        row_is_entry=row_is_entry,
        codec=codec,
        metadata=BlockMetadata(producer_name=producer_name),
    )
