"""Counts what a producer's callbacks confirm."""

from __future__ import annotations

import time
from typing import Any

from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.errors import PulsarException, Result, error_from
from pulsar_ray.model.message_id import MessageId


class Receipts(ErrorCallback):
    """The callback of all messages of one producer, whose I/O thread alone calls it."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self.error: PulsarException | None = None
        """The first one."""
        self._started = time.perf_counter()

    def __call__(self, result: Any, message_id: MessageId) -> None:
        if result == Result.Ok:
            self.confirmed += 1
        else:
            self.failed(error_from(int(result), ""))

    def failed(self, error: PulsarException) -> None:
        if self.error is None:
            self.error = error

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._started
