"""Finishes a producer's open batch when its publish delay is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pulsar_ray.client.producer.blocks.batch_builder import BatchBuilder
from pulsar_ray.lane.io_thread import Timers

_SHORTEST_S = 0.0005


class BatchTimer:
    """Runs one timer for all batches that are opened while it runs.

    A batch that was opened later than the one it was armed for gets the rest of its own delay. `finished` is
    called with the state lock held, and then `write` without it.
    """

    __slots__ = ("_delay_s", "_finished", "_is_armed", "_state", "_timers", "_write")

    def __init__(
        self,
        timers: Timers,
        state_lock: threading.Lock,
        delay_s: float,
        finished: Callable[[], None],
        write: Callable[[], None],
    ) -> None:
        self._timers = timers
        self._state = state_lock
        self._delay_s = delay_s
        self._finished = finished
        self._write = write
        self._is_armed = False

    def arm(self, builder: BatchBuilder) -> None:
        """Finish the batch that was just opened when it is due.

        Called with the state lock held.
        """
        if not self._is_armed:
            self._arm(self._delay_s, builder)

    def _arm(self, delay_s: float, builder: BatchBuilder) -> None:
        self._is_armed = True
        self._timers.call_later(delay_s, lambda: self._seal_due(builder))

    def _seal_due(self, builder: BatchBuilder) -> None:
        with self._state:
            self._is_armed = False
            now_ms = time.monotonic_ns() // 1_000_000
            if not builder.seal_due(now_ms) and (deadline := builder.deadline_ms) is not None:
                self._arm(max(_SHORTEST_S, (deadline - now_ms) / 1000), builder)
            self._finished()
        self._write()
