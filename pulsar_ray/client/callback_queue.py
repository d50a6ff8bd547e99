"""Blocks whose outcome is known and whose callbacks have to be told, one thread at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from pulsar_ray.client.pending_blocks import PendingBlock
from pulsar_ray.lane.timers import LoopTimers


class CallbackQueue:
    """Callbacks run in the order of completion; threads that find one running leave theirs to it.

    With a `home` they run there only: they complete futures of that loop.
    """

    def __init__(self, home: LoopTimers | None) -> None:
        self._home = home
        self._settled: deque[PendingBlock] = deque()
        self._role = threading.Lock()
        self.is_running = False
        """Whether callbacks run just now: what they send meanwhile goes out together afterwards."""

    def extend(self, settled: Iterable[PendingBlock]) -> None:
        """Add blocks that have their outcome; `run` must follow."""
        self._settled.extend(settled)

    def run(self) -> None:
        """Call back, unless another thread does; not under any lock that a callback may need."""
        if self._home is not None and not self._home.is_current:
            self._home.call_soon(self.run)
            return
        while self._settled and self._role.acquire(blocking=False):
            try:
                self.is_running = True
                while self._settled:
                    block = self._settled.popleft()
                    assert block.outcome is not None
                    block.done(*block.outcome)
            finally:
                self.is_running = False
                self._role.release()
