"""Write the logs of partitions that nobody has opened yet: a hundred actors would need minutes for it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path

from pulsar_ray.config import Settings
from pulsar_ray.format.block import BlockHeader, encode_block, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE, read_identity

VALUE_BYTES = 10_000
BLOCKS_AT_ONCE = 100


def write_sleeping(disks: Sequence[Path], topics: Collection[str], bytes_each: int, now_ms: int) -> int:
    """Write the logs of topics that nobody has opened; returns how many.

    The catalog is that of the first of these data directories. The broker may run: it opens such a partition
    for the first time when somebody uses it, and finds the log there.
    """
    stores = {}
    for disk in disks:
        identity = read_identity(disk)
        assert identity is not None, disk
        stores[identity.store_id] = disk, identity.cluster_id
    rows = [row for row in _without_logs(disks[0]) if row[0].rpartition("/")[2] in topics]
    blocks = [_block(number, now_ms) for number in range(max(1, bytes_each // VALUE_BYTES))]
    for name, number, store_id in rows:
        disk, cluster_id = stores[store_id]
        _write(disk / "p" / str(number), TopicIdentity(number, name, -1, cluster_id), blocks, now_ms)
    return len(rows)


def _without_logs(disk: Path) -> list[tuple[str, int, str]]:
    with tempfile.TemporaryDirectory() as directory:
        for path in disk.glob(f"{CATALOG_FILE}*"):
            shutil.copy(path, directory)
        with closing(sqlite3.connect(Path(directory) / CATALOG_FILE)) as database:
            query = "SELECT name, number, store_id FROM partition WHERE has_ledger = 0 AND store_id != ''"
            return database.execute(query).fetchall()


def _block(seq: int, now_ms: int) -> tuple[BlockHeader, list[Buffer]]:
    buffers = encode_block(
        os.urandom(VALUE_BYTES),
        incarnation=1,
        entry_seq=seq,
        first_sequence_id=seq,
        last_sequence_id=seq,
        publish_time_ms=now_ms,
    )
    return parse_block_header(buffers[0]), buffers


def _write(
    directory: Path, identity: TopicIdentity, blocks: Sequence[tuple[BlockHeader, list[Buffer]]], now_ms: int
) -> None:
    log = ManagedLedger.open(directory, identity, Settings(), now_ms)
    for begin in range(0, len(blocks), BLOCKS_AT_ONCE):
        commit = log.begin_append(blocks[begin : begin + BLOCKS_AT_ONCE], now_ms)
        commit.run()
        log.show(log.finish_append(commit).end)
    log.close()
