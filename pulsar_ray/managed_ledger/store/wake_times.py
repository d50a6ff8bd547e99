"""Keeps when sleeping partitions are to be woken (ADR 0032).

A note lies in the directory of each partition that time brings something for. The store reads all of them
when it starts, and is told of new ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk

NOTE = "wake-at"
MAX_DIGITS = 18


def write_wake_time(directory: Path, wake_at_ms: int | None, disk: Disk = SYSTEM_DISK) -> None:
    """Write a partition's note durably; take it away if there is nothing to wake for."""
    path = directory / NOTE
    if wake_at_ms is None:
        if not path.exists():
            return
        path.unlink(missing_ok=True)
    else:
        staged = path.with_suffix(".new")
        with staged.open("w") as file:
            file.write(str(wake_at_ms))
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    disk.fsync_dir(directory)


def read_wake_times(ledgers: Path) -> dict[int, int]:
    """Read the notes of all partitions, by number; damaged ones are due at once."""
    found: dict[int, int] = {}
    for note in ledgers.glob(f"[0-9]*/{NOTE}"):
        with contextlib.suppress(OSError):
            found[int(note.parent.name)] = _time_in(note.read_text())
    return found


def _time_in(text: str) -> int:
    is_time = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    return int(text) if is_time else 0


class WakeTimes:
    """The times of one store's sleeping partitions, by their numbers. Pure."""

    def __init__(self) -> None:
        self._due_ms: dict[int, int] = {}

    def learn(self, times: Mapping[int, int]) -> None:
        """Take the times that were read from the notes."""
        self._due_ms = dict(times)

    def slept(self, times: Mapping[int, int | None]) -> None:
        """Note when partitions that sleep are to be woken; None: for nothing that time brings."""
        for number, wake_at_ms in times.items():
            if wake_at_ms is None:
                self._due_ms.pop(number, None)
            else:
                self._due_ms[number] = wake_at_ms

    def take_due(self, now_ms: int, most: int) -> list[int]:
        """Take the partitions whose time has come, at most so many, the longest due first."""
        due = sorted((at, number) for number, at in self._due_ms.items() if at <= now_ms)[:most]
        for _, number in due:
            del self._due_ms[number]
        return [number for _, number in due]
