"""Blocks whose outcome is known and whose callbacks have to be told, one thread at a time."""

from __future__ import annotations

import threading
from collections import deque

from pulsar_ray.client.producer.unconfirmed_blocks import UnconfirmedBlock
from pulsar_ray.lane.timers import LoopTimers


class CallbackQueue:
    """Callbacks run in the order of completion; threads that find one running leave theirs to it.

    With a `home` they run there only: they complete futures of that loop.
    """

    def __init__(self, home: LoopTimers | None) -> None:
        self._home = home
        self.settled: deque[UnconfirmedBlock] = deque()
        """To be called back. Whoever adds blocks, which have their outcome, calls `run` afterwards."""
        self._role = threading.Lock()
        self.is_running = False
        """Whether callbacks run just now: what they send meanwhile goes out together afterwards."""

    def run(self) -> None:
        """Call back, unless another thread does; not under any lock that a callback may need."""
        if self._home is not None and not self._home.is_current:
            self._home.call_soon(self.run)
            return
        while self.settled and self._role.acquire(blocking=False):
            try:
                self.is_running = True
                while self.settled:
                    block = self.settled.popleft()
                    assert block.outcome is not None
                    block.done(*block.outcome)
            finally:
                self.is_running = False
                self._role.release()
