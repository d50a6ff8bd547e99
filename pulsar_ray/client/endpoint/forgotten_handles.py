"""Closes what a program has let go of without closing it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.endpoint.forking import notify_of_forks
from pulsar_ray.errors import AlreadyClosed, ForkedClient
from pulsar_ray.lane.io_thread import IoThread

logger = logging.getLogger(__name__)

MAX_CLOSERS = 8
"""Threads that close at once; each may wait for a partition that does not answer."""


class ForgottenHandles:
    """Closes handles that are garbage, each by its `close`, on threads of its own.

    There is one for a process. A finalizer may run anywhere, under any lock, so `take` takes none, starts no
    thread and waits for nothing: the I/O thread does that.
    """

    def __init__(self) -> None:
        self._start_empty()
        notify_of_forks(self)

    def _start_empty(self) -> None:
        self._waiting: deque[tuple[Any, Callable[[Any], None]]] = deque()
        self._changed = threading.Condition()
        self._closers = 0

    def forked(self, _error: ForkedClient) -> None:
        """Close nothing in a forked child: what waits is the parent's."""
        self._start_empty()

    def take(self, handle: Any, close: Callable[[Any], None]) -> None:
        """Have `close(handle)` called soon, on another thread.

        `IoThread.get` was called before in this process.
        """
        self._waiting.append((handle, close))
        IoThread.get().call_soon(self._begin)

    def _begin(self) -> None:
        with self._changed:
            if self._waiting and self._closers < MAX_CLOSERS:
                self._closers += 1
                threading.Thread(target=self._run, name="pulsar-ray-forgotten", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._closers -= 1
                    self._changed.notify_all()
                    return
                handle, close = self._waiting.popleft()
            try:
                close(handle)
            except AlreadyClosed:
                pass  # its client was closed meanwhile
            except Exception:
                logger.warning("closing what was forgotten failed", exc_info=True)
            # Not kept until the next one comes.
            del handle, close

    @property
    def is_busy(self) -> bool:
        """Whether anything that was forgotten is not closed yet."""
        return bool(self._waiting or self._closers)

    def settle(self, timeout_s: float) -> None:
        """Wait until all that was forgotten before is closed, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_busy, timeout_s)


FORGOTTEN = ForgottenHandles()
