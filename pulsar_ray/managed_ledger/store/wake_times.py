"""Keeps when sleeping partitions are to be woken (ADR 0032).

A note lies in the directory of each partition that time brings something for, and of each that is awake. The
store reads all of them when it starts, and is told of new ones.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Mapping
from pathlib import Path

from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk, write_whole

NOTE = "wake-at"
WAS_AWAKE = 0
"""In the note of a partition that is awake, or was when its process died."""
MAX_DIGITS = 18
LEAST_REBUILT = 64
"""So many replaced times are kept in any case."""
LEAST_SLACK_MS = 10_000


def look_again_ms(since_ms: int, limit_ms: int) -> int:
    """When a partition that sleeps looks at something again that lasts for a limit.

    That is a while after its end, so that one start serves several.
    """
    return since_ms + limit_ms + max(LEAST_SLACK_MS, limit_ms // 10)


def write_wake_time(directory: Path, wake_at_ms: int | None, disk: Disk = SYSTEM_DISK) -> None:
    """Write a partition's note durably; take it away if there is nothing to wake for."""
    path = directory / NOTE
    if wake_at_ms is None:
        if not path.exists():
            return
        path.unlink(missing_ok=True)
        disk.fsync_dir(directory)
    else:
        write_whole(disk, path, str(wake_at_ms).encode())


def mark_awake(directory: Path) -> None:
    """Make a partition that is awake due at once.

    So it is looked at after a death of the whole broker; if the disk is full, once it is used.
    """
    with contextlib.suppress(OSError):
        write_wake_time(directory, WAS_AWAKE)


def read_wake_times(ledgers: Path) -> dict[int, int]:
    """Read the notes of all partitions, by number; damaged ones are due at once."""
    found: dict[int, int] = {}
    # A store has tens of thousands of directories: no Path is made of each.
    with contextlib.suppress(FileNotFoundError), os.scandir(ledgers) as partitions:
        for partition in partitions:
            if partition.name.isascii() and partition.name.isdigit():
                with contextlib.suppress(OSError), open(f"{partition.path}/{NOTE}", "rb") as note:
                    found[int(partition.name)] = _time_in(note.read(MAX_DIGITS + 1))
    return found


def read_wake_time(directory: Path) -> int | None:
    """Read a partition's note as `read_wake_times`; None if it has none."""
    try:
        return _time_in((directory / NOTE).read_bytes()[: MAX_DIGITS + 1])
    except OSError:
        return None


def _time_in(text: bytes) -> int:
    is_time = text.isdigit() and len(text) <= MAX_DIGITS
    return int(text) if is_time else WAS_AWAKE


class WakeTimes:
    """The times of one store's sleeping partitions, by their numbers. Pure.

    A look costs what is due, however many sleep: the earliest time is on top of a heap. Times that were
    replaced stay in the heap until they come up, or until they are the larger part of it.
    """

    def __init__(self) -> None:
        self._due_ms: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._taken: dict[int, int] = {}
        """The last that were taken: nobody knows yet whether the answer came."""

    def learn(self, times: Mapping[int, int]) -> None:
        """Take the times of the notes, but where an earlier one was told.

        A partition that new policies concern is told to be due, and has no note of that. The times that
        were taken last count again: whoever has the notes read may not have got the answer.
        """
        for number, wake_at_ms in (*times.items(), *self._taken.items()):
            self._due_ms[number] = min(wake_at_ms, self._due_ms.get(number, wake_at_ms))
        self._taken = {}
        self._rebuild()

    def slept(self, times: Mapping[int, int | None]) -> None:
        """Note when partitions that sleep are to be woken; None: for nothing that time brings."""
        for number, wake_at_ms in times.items():
            self._taken.pop(number, None)
            if wake_at_ms is None:
                self._due_ms.pop(number, None)
            elif self._due_ms.get(number) != wake_at_ms:
                self._due_ms[number] = wake_at_ms
                heapq.heappush(self._heap, (wake_at_ms, number))
        if len(self._heap) > 2 * len(self._due_ms) + LEAST_REBUILT:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(at, number) for number, at in self._due_ms.items()]
        heapq.heapify(self._heap)

    def take_due(self, now_ms: int, most: int) -> dict[int, int]:
        """Take the partitions whose time has come, at most so many, the longest due first.

        They come with their times.
        """
        due: dict[int, int] = {}
        while self._heap and len(due) < most and self._heap[0][0] <= now_ms:
            at, number = heapq.heappop(self._heap)
            if self._due_ms.get(number) == at:
                del self._due_ms[number]
                due[number] = at
        self._taken = dict(due)
        return due
