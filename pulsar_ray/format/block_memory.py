"""Memory for blocks read from files or received, used again and again."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    import numpy.typing as npt

MIN_BLOCK_BYTES = 32 * 1024
"""Below this, memory costs little wherever it comes from."""
KEPT_BYTES = 64 * 1024 * 1024
_PAGE = 4096

_Slab: TypeAlias = "tuple[npt.NDArray[np.uint8], int]"
"""Memory and its address."""


class BlockMemory:
    """Hands out buffers, and takes back those that nothing refers to any more.

    A buffer comes back by itself, in whatever thread its last reference goes.

    Pages fresh from the system cost five times what reading into used ones does, and Arrow's pool gives large
    buffers back to the system at once. At most `kept_bytes` wait to be used again.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        # By size. Only single calls on them: the garbage collector may give a buffer back at any moment.
        self._free: dict[int, deque[_Slab]] = {}
        self._lent: dict[int, weakref.ref[Any]] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes of the buffers that wait to be used again."""
        return sum(size * len(free) for size, free in list(self._free.items()))

    def take(self, length: int, offset: int) -> memoryview:
        """An uninitialised buffer for what stands at `offset` of a file.

        It begins at the same place within a page as the data does: copies to a place a few bytes further on
        in a page than their source are five times slower on some processors.
        """
        size = 1 << (length + 2 * _PAGE - 1).bit_length()
        free = self._free.setdefault(size, deque())
        try:
            slab = free.pop()
        except IndexError:
            fresh = np.empty(size, dtype=np.uint8)
            slab = fresh, fresh.ctypes.data
        memory, address = slab
        start = (offset - address) % _PAGE
        lent = memory[start : start + length]
        self._lent[address] = weakref.ref(lent, lambda _: self._returned(slab, free))
        return lent.data

    def _returned(self, slab: _Slab, free: deque[_Slab]) -> None:
        memory, address = slab
        del self._lent[address]
        if self.free_bytes + memory.nbytes <= self._kept_bytes:
            free.append(slab)

    def close(self) -> None:
        """Keep nothing from now on."""
        self._kept_bytes = 0
        self._free.clear()
