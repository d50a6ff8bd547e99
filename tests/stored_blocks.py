"""Blocks and logs for tests of what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.config import Settings
from pulsar_ray.format.block import ROW_IS_ENTRY, BlockHeader, encode_block, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo
from pulsar_ray.managed_ledger.log.commit import AppendResult
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity

IDENTITY = TopicIdentity(7, "persistent://public/default/orders", -1)
MIB = 1024 * 1024


def block(
    seq: int,
    *,
    incarnation: int = 5,
    rows: int = 1,
    size: int = 40,
    publish_ms: int = 0,
    metadata: BlockMetadata | None = None,
    first_id: int | None = None,
    producer: str | None = None,
    chunk: ChunkInfo | None = None,
) -> tuple[BlockHeader, list[Buffer]]:
    """One block; with several rows each of them is an entry, and sequence ids rise from `first_id`."""
    first_id = seq if first_id is None else first_id
    buffers = encode_block(
        (f"{incarnation}/{seq} ".encode() * size)[:size],
        incarnation=incarnation,
        entry_seq=seq,
        first_sequence_id=first_id,
        last_sequence_id=first_id + rows - 1,
        publish_time_ms=publish_ms,
        message_count=rows,
        flags=ROW_IS_ENTRY if rows > 1 else 0,
        metadata=metadata or BlockMetadata(producer_name=producer, chunk=chunk),
    )
    return parse_block_header(b"".join(bytes(buffer) for buffer in buffers)), buffers


def settings(**changes: Any) -> Settings:
    """Settings under which a ledger rolls without a minimum time."""
    return Settings(
        **{
            "managed_ledger_min_ledger_rollover_time_minutes": 0,
            "new_topic_retention_seconds": 0,
            **changes,
        }
    )


def open_log(path: Path, now_ms: int = 1000, config: Settings | None = None, **options: Any) -> ManagedLedger:
    """Open a log with an identity and settings for tests."""
    return ManagedLedger.open(path, IDENTITY, config or settings(), now_ms, **options)


def append(log: ManagedLedger, *seqs: int, now_ms: int = 1000, **fields: Any) -> AppendResult:
    """Append single-row blocks as one frame."""
    return append_blocks(log, [block(seq, **fields) for seq in seqs], now_ms)


def append_blocks(
    log: ManagedLedger, blocks: Sequence[tuple[BlockHeader, list[Buffer]]], now_ms: int = 1000
) -> AppendResult:
    commit = log.begin_append(blocks, now_ms)
    try:
        commit.run()
    except BaseException:
        log.fail_append(commit)
        raise
    result = log.finish_append(commit)
    log.show(result.end)
    return result


def change(log: ManagedLedger, pending: Any) -> Any:
    """Carry out a change of the manifest."""
    if pending is None:
        return None
    try:
        pending.run()
    except BaseException:
        log.changes.fail(pending)
        raise
    return log.changes.finish(pending)


def abandon(log: ManagedLedger) -> None:
    """Leave a log as a killed process does: nothing is closed, only the lock and descriptors go."""
    files = log._files
    files.writer.close()
    files.log.close()
    files.owner.close()
