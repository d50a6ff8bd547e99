"""Have the allocator keep large pieces of memory that will be wanted again."""

from __future__ import annotations

import ctypes

# As glibc's malloc.h has them.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3

_KEPT_BYTES = 96 << 20
"""A reader has in hand a block, its frames, and frames of the next one."""
_NEVER_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Keep up to 96 MiB of this process's freed memory from the kernel.

    Pieces of some MiB would go back to it when they are freed, and come again page by page, each cleared
    first: up to a quarter of a reader's work, as they happen to lie. Does nothing without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _NEVER_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    # Threads have their memory in pieces of 64 MiB, which go back when they are empty unless this is larger.
    mallopt(_M_TOP_PAD, _KEPT_BYTES)
