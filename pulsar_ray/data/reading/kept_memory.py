"""Memory that a process has freed and keeps, since more will be wanted."""

from __future__ import annotations

import ctypes
from typing import Any

import psutil

# As glibc's malloc.h has them.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3

_KEPT_BYTES = 96 << 20
"""For each of glibc's arenas, of which a thread has one."""
_LARGE_BYTES = 1 << 30
_LARGE_BYTES_OF_OLD_GLIBC = 32 << 20
_MOST_BYTES = 192 << 20
"""A block of the usual size and its frames take some 100 MiB."""


class KeptMemory:
    """Has glibc keep freed memory, up to 192 MiB; without glibc nothing is kept.

    Pieces of some MiB would go back to the kernel when they are freed, and come again page by page, each
    cleared first. That took readers up to a quarter of their time (ADR 0079).
    """

    def __init__(self) -> None:
        self._libc = _glibc()
        self._at_first = _own_bytes()
        if self._libc is None:
            return
        set_option = self._libc.mallopt
        if set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES) or set_option(
            _M_MMAP_THRESHOLD, _LARGE_BYTES_OF_OLD_GLIBC
        ):
            set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            # Threads have their memory in pieces of 64 MiB. An empty one goes back unless this is larger.
            set_option(_M_TOP_PAD, _KEPT_BYTES)

    def trim(self) -> None:
        """Give everything back that is freed if the process has grown by 192 MiB.

        For moments of rest.
        """
        if self._libc is not None and _own_bytes() - self._at_first > _MOST_BYTES:
            self._libc.malloc_trim(0)


def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        _ = libc.mallopt, libc.malloc_trim
    except (AttributeError, OSError):
        return None
    return libc


def _own_bytes() -> int:
    """Resident memory that is not shared, as that of Ray's store is."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)
