"""Knows the open producers, consumers and readers of one client, and closes them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from pulsar_ray.client.endpoint.ending import Ending, notify_of_forks
from pulsar_ray.errors import AlreadyClosed, ForkedClient, PulsarException, WrongNode
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


class Handle(Protocol):
    """A producer, consumer, reader or table view."""

    @property
    def ending(self) -> Ending: ...

    def close(self) -> None: ...

    def shut_down(self) -> None: ...


class OpenHandles:
    """Finds each handle from its opening until it has closed itself. Thread-safe.

    A handle that the program forgets is closed; it stays here until that is done, so that the client's own
    end waits for it. `owner` is the ending of the client that opens them; `can_close` whether a close would
    be answered, and not just take its time.
    """

    def __init__(self, owner: Ending, can_close: Callable[[], bool] = lambda: True) -> None:
        self._owner = owner
        self._can_close = can_close
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        self._kept: dict[int, Handle] = {}
        """Those that stay though the program forgets them, and those that it has forgotten."""

    def forked(self) -> None:
        """Take a new lock in a forked child, where another thread's would stay locked."""
        self._lock = threading.Lock()

    def add(self, handle: Handle, name: str = "", *, stays: bool = False) -> None:
        """Know a handle that was opened, or shut it down.

        The latter if its owner has ended meanwhile. One that `stays` is not closed when it is forgotten: it
        has listeners. `name` is the topic.
        """
        IoThread.get()  # it begins what a finalizer hands on
        handle.ending.name = name
        with self._lock:
            self._open[id(handle)] = handle
            if stays:
                self._kept[id(handle)] = handle
            else:
                handle.ending.when_forgotten(self._forgotten)
        if self._owner.is_over and not handle.ending.is_over:
            # The owner may have been closed without this one.
            handle.shut_down()
            self.remove(handle)

    def _forgotten(self, handle: Handle) -> None:
        # In a finalizer, so without the lock.
        self._kept[id(handle)] = handle
        FORGOTTEN.take(handle, self._close_forgotten)

    def _close_forgotten(self, handle: Handle) -> None:
        try:
            if self._can_close():
                handle.close()
            else:
                handle.shut_down()
        finally:
            self.remove(handle)

    def remove(self, handle: Any) -> None:
        """Forget a handle that has closed itself; one that is not known is harmless."""
        with self._lock:
            self._open.pop(id(handle), None)
            self._kept.pop(id(handle), None)

    def close_all(self, timeout_s: float) -> PulsarException | None:
        """Close each handle, whatever happens to another one; returns the first error.

        A partition that is away is none. A close that another thread has begun is waited for, up to
        `timeout_s`.
        """
        first_error: PulsarException | None = None
        for handle in self._all():
            try:
                if not handle.ending.has_come(timeout_s):
                    handle.close()
            except AlreadyClosed:
                handle.ending.has_come(timeout_s)
            except WrongNode as error:
                # Nothing is lost by it: what was acknowledged last may come again, the rest is closed later.
                logger.warning("closed while a partition is away: %s", error)
            except PulsarException as error:
                first_error = first_error or error
        return first_error

    def shut_down_all(self) -> None:
        """End each handle at once."""
        for handle in self._all():
            handle.shut_down()

    def clear(self) -> None:
        """Forget all handles."""
        with self._lock:
            self._open.clear()
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> list[Handle]:
        """All that are open, in the order of their opening where they are not forgotten."""
        with self._lock:
            return list({**dict(self._open.items()), **self._kept.copy()}.values())
