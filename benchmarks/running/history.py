"""Measure what a log's history costs: opening it, and publishing behind it.

In this process, without a partition: CPU alone is compared. Histories are written without syncs, appends too.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.measuring.environment import Environment
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row
from pulsar_ray.config import Settings
from pulsar_ray.format.block import BlockHeader, encode_block, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.disk import SystemDisk
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import TopicIdentity

LEDGERS = 10_000
FEW_LEDGERS = 100
LARGE_BYTES = 10**9
SMALL_BYTES = 10**8
LARGE_BLOCK_BYTES = 10**6
APPENDS = 5000
ROUNDS = 9
IDENTITY = TopicIdentity(7, "persistent://public/default/bench", -1)


class _QuickDisk(SystemDisk):
    """The system's disk without its syncs, which would be all that is measured."""

    fdatasync = staticmethod(lambda fd: None)

    def fsync_dir(self, path: Path) -> None:
        """Nothing."""


_DISK = _QuickDisk()


def run(env: Environment) -> list[Row]:
    """Open logs of different lengths, and let two of them take turns in appending."""
    ledgers = env.count(LEDGERS, FEW_LEDGERS)
    large = env.count(LARGE_BYTES, SMALL_BYTES)
    with env.directory() as path:
        _write(path / "large", 1, large // LARGE_BLOCK_BYTES, LARGE_BLOCK_BYTES)
        _write(path / "small", 1, SMALL_BYTES // LARGE_BLOCK_BYTES, LARGE_BLOCK_BYTES)
        _write(path / "many", ledgers, 1, 100)
        _write(path / "few", FEW_LEDGERS, 1, 100)
        opened = [_opening_s(path / name, 1) for name in ("large", "small")]
        opened += [_opening_s(path / name, 3) for name in ("many", "few")]
        return [
            _by_size(large, opened[0], opened[1]),
            _by_ledgers(ledgers, opened[2] / ledgers, opened[3] / FEW_LEDGERS),
            _publishing(path, ledgers),
        ]


def _by_size(large: int, ours: float, floor: float) -> Row:
    return Row(
        f"open a log of {large / 1e9:.1f} GB behind a kill: CPU",
        f"{ours * 1000:.1f} ms",
        f"of {SMALL_BYTES / 1e9:.1f} GB {floor * 1000:.1f} ms",
        ours / floor,
        2,
        at_most=True,
        note="what is read is the tail behind the last checkpoints",
    )


def _by_ledgers(ledgers: int, ours: float, floor: float) -> Row:
    return Row(
        f"open a log of {ledgers:,} ledgers: CPU per ledger",
        f"{ours * 1e6:.0f} us",
        f"of {FEW_LEDGERS} {floor * 1e6:.0f} us",
        ours / floor,
        1.5,
        at_most=True,
        note=f"{ours * ledgers * 1000:.0f} ms altogether",
    )


def _publishing(path: Path, ledgers: int) -> Row:
    logs = [_open(path / name) for name in ("many", "empty")]
    rates: list[list[float]] = [[], []]
    for turn in range(ROUNDS + 1):
        for log, found in zip(logs, rates, strict=True):
            rate = _append_rate(log, turn)
            if turn:
                found.append(rate)
    for log in logs:
        log.close()
    ours, floor = map(p50, rates)
    return Row(
        f"append 100 B behind {ledgers:,} ledgers: per second of CPU",
        f"{ours:,.0f}",
        f"behind none {floor:,.0f}",
        ours / floor,
        0.9,
    )


def _append_rate(log: ManagedLedger, turn: int) -> float:
    began = time.process_time()
    for number in range(APPENDS):
        _append(log, _block(turn * APPENDS + number, incarnation=2, size=100))
    return APPENDS / (time.process_time() - began)


def _opening_s(directory: Path, times: int) -> float:
    """The CPU that opening takes; each time the log ends as a kill leaves it."""
    found = []
    for number in range(times):
        began = time.process_time()
        log = _open(directory)
        found.append(time.process_time() - began)
        _append(log, _block(0, incarnation=10 + number, size=100))
        _abandon(log)
    return p50(found)


def _write(directory: Path, ledgers: int, blocks: int, size: int) -> None:
    log = _open(directory)
    for ledger in range(ledgers):
        for number in range(blocks):
            _append(log, _block(ledger * blocks + number, incarnation=1, size=size))
        if ledgers > 1:
            log.changes.end_log()
    _abandon(log)


def _open(directory: Path) -> ManagedLedger:
    settings = Settings(managed_ledger_min_ledger_rollover_time_minutes=0)
    return ManagedLedger.open(directory, IDENTITY, settings, 1000, disk=_DISK)


def _block(seq: int, *, incarnation: int, size: int) -> tuple[BlockHeader, list[Buffer]]:
    buffers = encode_block(
        bytes(size),
        incarnation=incarnation,
        entry_seq=seq,
        first_sequence_id=seq,
        last_sequence_id=seq,
        publish_time_ms=1000,
    )
    return parse_block_header(buffers[0]), buffers


def _append(log: ManagedLedger, block: tuple[BlockHeader, list[Buffer]]) -> None:
    commit = log.begin_append([block], 1000)
    commit.run()
    log.finish_append(commit)


def _abandon(log: ManagedLedger) -> None:
    """Leave a log as a killed process does."""
    files = log._files  # noqa: SLF001
    files.writer.close()
    files.log.close()
    files.owner.close()
