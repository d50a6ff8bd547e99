"""The producing side of the demo, which kills a partition's actor half way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import PulsarException, Result, error_from
from pulsar_ray_spark.demo.text import Tally, TextFile, batches

LINES_PER_BATCH = 4096
BATCHES_UNDER_WAY = 16
RECEIPT_TIMEOUT_S = 60.0
RESTART_TIMEOUT_S = 60.0
_POLL_S = 0.05


class Killing:
    """SIGKILLs the actor of the partition with the most messages, and watches it come back."""

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin = admin
        self.partition, stats = max(
            admin.topics.stats(topic, subscriptions=False)["partitions"].items(),
            key=lambda item: item[1]["msgInCounter"],
        )
        self.pid: int = stats["pid"]
        self.seconds: float | None = None
        self.new_pid: int | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._killed = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)
        self._thread.start()

    def _watch(self) -> None:
        while time.monotonic() - self._killed < RESTART_TIMEOUT_S:
            try:
                pid = self._admin.topics.stats(self.partition, subscriptions=False)["pid"]
            except PulsarException:
                pid = self.pid
            if pid != self.pid:
                self.seconds, self.new_pid = time.monotonic() - self._killed, pid
                return
            time.sleep(_POLL_S)

    def wait(self) -> None:
        """Until it serves again, or has not for too long (`seconds` is None then)."""
        self._thread.join()


class Publishing:
    """Publishes all lines of some files and keeps count of the receipts."""

    def __init__(self, producer: Producer, files: Sequence[TextFile]) -> None:
        self._producer = producer
        self._files = files
        self._total_bytes = sum(file.path.stat().st_size for file in files)
        self._room = threading.Semaphore(BATCHES_UNDER_WAY)
        self._error: PulsarException | None = None
        self.expected: dict[str, Tally] = {}
        self.sent = 0
        self.sent_bytes = 0
        self.confirmed = 0
        self.seconds = 0.0

    @property
    def share(self) -> float:
        """The sent share of the files, from 0 to 1."""
        return min(1.0, self.sent_bytes / self._total_bytes) if self._total_bytes else 1.0

    def run(self, half_way: Callable[[], None]) -> None:
        """Send everything and wait for every receipt; `half_way` is called once, in the middle.

        Raises the first error of a send, or Timeout for a receipt that never came.
        """
        started = time.perf_counter()
        is_second_half = False
        for keys, values, tallies in batches(self._files, LINES_PER_BATCH):
            self._wait_for_room()
            self.expected.update(tallies)
            self.sent += len(values)
            self.sent_bytes += sum(map(len, values)) + len(values)
            self._producer.send_many_async(values, self._receipt(len(values)), partition_keys=keys)
            if not is_second_half and self.share >= 0.5:
                is_second_half = True
                half_way()
        for _ in range(BATCHES_UNDER_WAY):
            self._wait_for_room()
        self.seconds = time.perf_counter() - started

    def _receipt(self, lines: int) -> Callable[[Any, Any], None]:
        def received(result: Any, _ids: Any) -> None:
            if result == Result.Ok:
                self.confirmed += lines
            else:
                self._error = self._error or error_from(int(result), "a batch of lines was not stored")
            self._room.release()

        return received

    def _wait_for_room(self) -> None:
        if not self._room.acquire(timeout=RECEIPT_TIMEOUT_S):
            raise error_from("Timeout", f"no receipt came for {RECEIPT_TIMEOUT_S:.0f} s")
        if self._error is not None:
            raise self._error.again()
