"""Runs the callbacks of blocks whose outcome is known, in order."""

from __future__ import annotations

import threading
from collections import deque

from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock
from pulsar_ray.lane.io_thread import LoopTimers
from pulsar_ray.lane.waiting import HERE


class CallbackQueue:
    """Runs callbacks in the order of completion, one thread at a time.

    Threads that find one running leave theirs to it. With a `home` callbacks run there only: they complete
    futures of that loop.
    """

    def __init__(self, home: LoopTimers | None) -> None:
        self._home = home
        self.settled: deque[UnconfirmedBlock] = deque()
        """The blocks to be called back, which have their outcome.

        A thread that adds blocks calls `run` afterwards.
        """
        self._role = threading.Lock()
        self.is_running = False
        """Whether callbacks run now: what they send meanwhile goes out together afterwards."""

    def run(self) -> None:
        """Call back, unless another thread does.

        Not to be called under a lock that a callback may need.
        """
        if self._home is not None and not self._home.is_current:
            self._home.call_soon(self.run)
            return
        while self.settled and self._role.acquire(blocking=False):
            before, HERE.runs_callbacks = HERE.runs_callbacks, True
            try:
                self.is_running = True
                while self.settled:
                    self.settled.popleft().complete()
            finally:
                self.is_running = False
                HERE.runs_callbacks = before
                self._role.release()
