"""Counts that a process writes for others to read, also after it was killed.

The process keeps them in a memfd, a counter in each 8 bytes, and names it by its descriptor. Another process
on the node opens that through `/proc` and so keeps the memory alive. Writing costs a store in memory: no
packet, no call, no lock. Nothing is learnt where it cannot be opened: on
another node, or in another namespace.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import threading
from collections.abc import Callable
from functools import partial

from pulsar_ray.kernel_calls import MFD_ALLOW_SEALING, MFD_CLOEXEC, memfd_create
from pulsar_ray.lane.shared_memory import map_of, seal

_PAGE = 4096
_NONCE_BYTES = 16
_COUNTER = struct.Struct("<Q")
_FIRST = 16

CounterName = tuple[int, int, int, bytes]
"""(process id, descriptor, offset, random bytes at the start of the memory)."""


class Counter:
    """A counter of this process; one thread writes at a time."""

    __slots__ = ("_at", "_page", "name", "write")

    def __init__(self, page: _Page, at: int) -> None:
        self._page = page
        self._at = at
        self.write: Callable[[int], None] = partial(_COUNTER.pack_into, page.view, at)
        """Makes a count visible: whoever reads it after this process was killed sees it."""
        self.name: CounterName = (page.pid, page.fd, at, page.nonce)
        """How other processes find it."""

    def release(self) -> None:
        """Give the counter back."""
        self._page.release(self._at)


class _Page:
    """Raises OSError where there is no such memory."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.fd = memfd_create("pulsar-ray-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, _PAGE)
            seal(self.fd)
            self.view = mmap.mmap(self.fd, _PAGE)
        except BaseException:
            os.close(self.fd)
            raise
        self.nonce = secrets.token_bytes(_NONCE_BYTES)
        self.view[:_NONCE_BYTES] = self.nonce
        self._free = list(range(_PAGE - _COUNTER.size, _FIRST - 1, -_COUNTER.size))
        self._lock = threading.Lock()

    def take(self) -> Counter | None:
        with self._lock:
            if not self._free:
                return None
            at = self._free.pop()
        counter = Counter(self, at)
        counter.write(0)
        return counter

    def release(self, at: int) -> None:
        if self.pid == os.getpid():
            with self._lock:
                self._free.append(at)


_pages: list[_Page] = []


def new_counter() -> Counter | None:
    """A counter of this process, None where memory cannot be shared."""
    for page in _pages:
        # A forked child has a memory of its own: its parent's belongs to the parent.
        if page.pid == os.getpid() and (counter := page.take()) is not None:
            return counter
    try:
        page = _Page()
    except OSError:
        return None
    _pages.append(page)
    return page.take()


class CounterView:
    """The counter of another process."""

    __slots__ = ("_at", "_map")

    def __init__(self, mapped: mmap.mmap, at: int) -> None:
        self._map = mapped
        self._at = at

    @classmethod
    def open(cls, name: CounterName) -> CounterView | None:
        """Open a counter, None if it cannot be reached from here."""
        pid, descriptor, at, nonce = name
        if not _FIRST <= at <= _PAGE - _COUNTER.size:
            return None
        try:
            mapped = map_of(pid, descriptor, os.geteuid(), _PAGE)
        except OSError:
            return None
        return cls(mapped, at) if mapped[:_NONCE_BYTES] == nonce else None

    def read(self) -> int:
        """The count by now, or when its process ended."""
        count: int = _COUNTER.unpack_from(self._map, self._at)[0]
        return count
