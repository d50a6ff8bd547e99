"""Limits how much of one producer waits for receipts of one partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlocks
from pulsar_ray.errors import ProducerQueueIsFull, Timeout

MAX_UNCONFIRMED_BYTES = 64 * 1024 * 1024
UNLIMITED = 1 << 62
_FOREVER_S = 1e9
_LOOK_S = 0.1


class SendRoom:
    """Counts unconfirmed blocks and gathered messages against the limits.

    `gathered` messages are added and in no block yet. The queue's state lock guards the room: every call is
    made with that lock held.
    """

    __slots__ = ("_blocks", "_condition", "_max_messages", "_timeout_s", "on_room", "sure", "waiting")

    def __init__(
        self, state_lock: threading.Lock, blocks: UnconfirmedBlocks, options: ProducerOptions
    ) -> None:
        self._condition = threading.Condition(state_lock)
        self._blocks = blocks
        self._max_messages = options.max_pending_messages
        self._timeout_s = options.send_timeout_millis / 1000
        self.waiting = 0
        """How many threads wait for room."""
        self.on_room: Callable[[], None] | None = None
        """Called with the state lock held when receipts or refusals have made room."""
        self.sure = 0
        """How many messages fit without a look.

        All else that fills the queue sets it to 0.
        """

    def blocks_added(self) -> None:
        """Have the next message look for room if the blocks fill it."""
        if self._blocks.size > MAX_UNCONFIRMED_BYTES:
            self.sure = 0

    def is_full(self, gathered: int, messages: int, size: int) -> bool:
        """Whether that many more messages, of `size` bytes together, do not fit.

        A block larger than the limit of bytes fits alone. 0 messages are limited by bytes only.
        """
        blocks = self._blocks
        if blocks.size + size > MAX_UNCONFIRMED_BYTES and blocks.size:
            return True
        limit = self._max_messages
        return bool(limit and messages) and blocks.messages + gathered + messages > limit

    def left(self, gathered: int) -> int:
        """How many more messages fit now."""
        blocks = self._blocks
        if blocks.size > MAX_UNCONFIRMED_BYTES:
            return 0
        if not self._max_messages:
            return UNLIMITED
        return max(0, self._max_messages - blocks.messages - gathered)

    def made(self) -> None:
        """Wake the threads that wait for room, and call `on_room`."""
        self._condition.notify_all()
        if self.on_room is not None:
            self.on_room()

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Wait until `is_over`.

        It is asked with the lock held, and may raise what ends the wait. Raises Timeout after the send
        timeout.
        """
        deadline = time.monotonic() + (self._timeout_s or _FOREVER_S)
        while not is_over():
            if time.monotonic() > deadline:
                raise Timeout(f"the producer's queue stayed full for {self._timeout_s} s")
            self.waiting += 1
            try:
                self._condition.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
            finally:
                self.waiting -= 1

    def full_error(self, gathered: int) -> ProducerQueueIsFull:
        """The error for a message that must not wait for room."""
        return ProducerQueueIsFull(
            f"{self._blocks.messages + gathered} messages wait to be stored and confirmed; wait for "
            f"callbacks, raise max_pending_messages={self._max_messages}, or set block_if_queue_full=True"
        )
