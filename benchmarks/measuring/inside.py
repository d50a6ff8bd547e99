"""Make a broker actor's process slow or busy for a run.

None of this is in the product.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from pulsar_ray.ledger.disk import Disk, SystemDisk


class SlowDisk(SystemDisk):
    """The real disk with so much added to each fdatasync."""

    def __init__(self, fdatasync_s: float) -> None:
        self._fdatasync_s = fdatasync_s

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        time.sleep(self._fdatasync_s)


def slow_down(partition: Any, fdatasync_s: float) -> None:
    """Let a TopicPartition's segment writer sync on a slow disk; 0 is the real one."""
    disk: Disk = SlowDisk(fdatasync_s) if fdatasync_s else SystemDisk()
    partition._server.ledger._files.writer._disk = disk  # noqa: SLF001


class UsedPagesDisk(SystemDisk):
    """The real disk, on which new segments are files that were written before: fresh pages cost half."""

    def __init__(self, directory: Path, segments: int, segment_bytes: int) -> None:
        self._spares = [directory / f"spare-{number}" for number in range(segments)]
        block = b"\1" * (1 << 20)
        for path in self._spares:
            with path.open("wb", buffering=0) as file:
                for _ in range(0, segment_bytes, len(block)):
                    file.write(block)

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_EXCL and self._spares:
            self._spares.pop().rename(path)
            return os.open(path, os.O_WRONLY)
        return super().open(path, flags)


def write_into_used_pages(partition: Any, size: int) -> None:
    """Let a TopicPartition have pages for so many bytes."""
    ledger = partition._server.ledger  # noqa: SLF001
    segment_bytes = partition._in_force.settings.segment_size_bytes  # noqa: SLF001
    disk: Disk = UsedPagesDisk(ledger.directory, size // segment_bytes + 1, segment_bytes)
    ledger._files.writer._disk = disk  # noqa: SLF001


class Busy:
    """A thread that computes in Python, until told to stop."""

    def __init__(self) -> None:
        self._running = True
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self._thread.start()

    def _compute(self) -> None:
        state = 0
        while self._running:
            for step in range(10_000):
                state = (state * 31 + step) & 0xFFFF

    def stop(self) -> None:
        """Compute no more."""
        self._running = False
        self._thread.join()


def start_computing(actor: Any) -> None:
    """Keep a thread of the actor's process busy."""
    actor.bench_busy = Busy()


def stop_computing(actor: Any) -> None:
    """Let it go."""
    actor.bench_busy.stop()


def stop_reporting(actor: Any) -> None:
    """Let it tell its node's metrics nothing from now on."""

    async def nothing() -> None:
        return None

    actor._reports._reporter._gather = nothing  # noqa: SLF001


def seconds_of_reports(actor: Any, count: int) -> list[float]:
    """Return how long each of so many reports of its figures takes, encoded and not sent."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        actor._owner.submit(actor._server.report).result().encode()  # noqa: SLF001
        times.append(time.perf_counter() - start)
    return times
