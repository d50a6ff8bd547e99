"""Reports, for stats, of messages that a consumer moves to dead letter topics."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer

REPORT_S = 1.0
"""Between two reports."""


class MoveReport:
    """Counts moved messages of each partition, and keeps the reason while they cannot be moved."""

    def __init__(self) -> None:
        self._moved: dict[PartitionConsumer, int] = {}
        self._errors: dict[PartitionConsumer, str] = {}
        self._changed: set[PartitionConsumer] = set()
        self._sent_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether something has not been reported yet."""
        return bool(self._changed)

    def moved(self, partition: PartitionConsumer, count: int) -> None:
        """Count messages that were moved."""
        self._moved[partition] = self._moved.get(partition, 0) + count
        self._errors.pop(partition, None)
        self._changed.add(partition)

    def failed(self, partitions: Iterable[PartitionConsumer], reason: str) -> bool:
        """Keep the reason why messages were not moved; False if it was known.

        Each failure reports the reason again, for the report of the one before may have been lost.
        """
        is_new = False
        for partition in partitions:
            is_new |= self._errors.get(partition) != reason
            self._errors[partition] = reason
            self._changed.add(partition)
        return is_new

    def send_if_due(self) -> None:
        """Report what has changed, unless a report was sent just now.

        A lost report is made good by the next one: the numbers are absolute.
        """
        if self._changed and time.monotonic() - self._sent_s >= REPORT_S:
            self.send()

    def send(self) -> None:
        """Report what has changed."""
        self._sent_s = time.monotonic()
        changed, self._changed = self._changed, set()
        for partition in changed:
            if not partition.session.is_gone():
                partition.report_moves(self._moved.get(partition, 0), self._errors.get(partition, ""))
