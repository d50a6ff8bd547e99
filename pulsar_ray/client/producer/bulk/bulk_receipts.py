"""Collects the receipts of one call's blocks into one answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.errors import PulsarException, Result, Timeout
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.model.message_id import MessageId

logger = logging.getLogger(__name__)

BulkCallback = Callable[[Any, list[MessageId]], None]
"""callback(Result, the last message id of each partition)."""


class BulkReceipts:
    """Counts blocks under way, and answers when all have ended. Thread-safe.

    The answer is the last message id of each partition that got any, or the first error.
    """

    def __init__(self, callback: BulkCallback | None) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        # The call itself counts as one until it has begun its last block.
        self._under_way = 1
        self._last: dict[int, MessageId] = {}
        self._error: PulsarException | None = None
        self._done = Completion()

    def begin_block(self) -> None:
        """Count a block, before it can be confirmed."""
        with self._lock:
            self._under_way += 1

    def stored(self, partition: int, last: MessageId) -> None:
        """End a block that is stored up to the message `last`."""
        self._end_one(partition, last, None)

    def failed(self, error: PulsarException) -> None:
        """End a block that was not stored, or perhaps not."""
        self._end_one(-1, None, error)

    def all_begun(self) -> None:
        """Answer as soon as all blocks so far have ended: no more of them follow."""
        self._end_one(-1, None, None)

    def _end_one(self, partition: int, last: MessageId | None, error: PulsarException | None) -> None:
        with self._lock:
            self._under_way -= 1
            if error is not None:
                self._error = self._error or error
            elif last is not None and (partition not in self._last or self._last[partition] < last):
                self._last[partition] = last
            is_last = self._under_way == 0
        if is_last:
            self._answer()

    def _answer(self) -> None:
        self._done.set()
        if self._callback is None:
            return
        try:
            if self._error is not None:
                self._callback(self._error.result, [])
            else:
                self._callback(Result.Ok, self._ids())
        except Exception:
            logger.exception("a send callback raised")

    def _ids(self) -> list[MessageId]:
        return [self._last[partition] for partition in sorted(self._last)]

    def wait(self, link: EndpointLink | None, timeout_s: float) -> list[MessageId]:
        """Wait for the answer, reading `link` if all blocks went over one.

        Raises the first error, Timeout without receipts in time.
        """
        if link is not None:
            link.wait(self._done, time.monotonic() + timeout_s)
        else:
            self._done.wait(timeout_s)
        if not self._done.is_set():
            raise Timeout(f"no receipts within {timeout_s} s; which messages were stored is unknown")
        if self._error is not None:
            raise self._error.again()
        return self._ids()
