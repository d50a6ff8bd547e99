"""Keeps the open producers, consumers and readers of one client, and closes them."""

from __future__ import annotations

import threading
from typing import Protocol

from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.errors import AlreadyClosed, PulsarException


class Handle(Protocol):
    """A producer, consumer or reader."""

    @property
    def ending(self) -> Ending: ...

    def close(self) -> None: ...

    def shut_down(self) -> None: ...


class OpenHandles:
    """Holds each handle from its opening until it has closed itself. Thread-safe.

    `owner` is the ending of the client that opens them.
    """

    def __init__(self, owner: Ending) -> None:
        self._owner = owner
        self._lock = threading.Lock()
        self._handles: list[Handle] = []

    def forked(self) -> None:
        """Take a new lock in a forked child, where another thread's would stay locked."""
        self._lock = threading.Lock()

    def add(self, handle: Handle) -> None:
        """Keep a handle that was opened, or shut it down.

        The latter if its owner has ended meanwhile.
        """
        with self._lock:
            self._handles.append(handle)
        if self._owner.is_over and not handle.ending.is_over:
            # The owner may have been closed without this one.
            handle.shut_down()
            self.remove(handle)

    def remove(self, handle: Handle) -> None:
        """Forget a handle that has closed itself; one that is not kept is harmless."""
        with self._lock:
            if handle in self._handles:
                self._handles.remove(handle)

    def close_all(self, timeout_s: float) -> PulsarException | None:
        """Close each handle, whatever happens to another one; returns the first error.

        A close that another thread has begun is waited for, up to `timeout_s`.
        """
        first_error: PulsarException | None = None
        for handle in self._kept():
            try:
                if not handle.ending.has_come(timeout_s):
                    handle.close()
            except AlreadyClosed:
                handle.ending.has_come(timeout_s)
            except PulsarException as error:
                first_error = first_error or error
        return first_error

    def shut_down_all(self) -> None:
        """End each handle at once."""
        for handle in self._kept():
            handle.shut_down()

    def clear(self) -> None:
        """Forget all handles."""
        with self._lock:
            self._handles.clear()

    def __len__(self) -> int:
        return len(self._handles)

    def _kept(self) -> list[Handle]:
        with self._lock:
            return list(self._handles)
