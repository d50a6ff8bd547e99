"""Blocks in the order of the log, found by any of their entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TypeAlias

from pulsar_ray.dispatch.consumer import DispatchBlock

Key: TypeAlias = tuple[int, int]
"""(ledger id, first entry id) of a block."""

_LEAST_STALE = 64


class BlockIndex(dict[Key, DispatchBlock]):
    """Blocks by key, the lowest first.

    They come in order, but for delayed ones that are due, and go in any.

    So a sorted list of keys mostly grows at its end. Keys of blocks that have gone stay there until
    they are half of the list: adding and deleting cost next to nothing, searching one bisection.
    """

    __slots__ = ("_head", "_is_in_order", "_keys")

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Key] = []
        self._head = 0  # everything before it has gone
        self._is_in_order = True  # the dict's own order is that of the keys

    def add(self, block: DispatchBlock) -> None:
        """A block behind all that were there since `clear`."""
        keys = self._keys
        if keys and block.key <= keys[-1]:
            self.insert(block)  # one that was due has come before its turn
            return
        self[block.key] = block
        keys.append(block.key)
        self._clean()

    def insert(self, block: DispatchBlock) -> None:
        """A block anywhere, also one that was here before and has gone."""
        keys, key = self._keys, block.key
        at = bisect_left(keys, key)
        if at == len(keys) or keys[at] != key:
            keys.insert(at, key)
        self._head = min(self._head, at)
        self._is_in_order = False
        self[key] = block
        self._clean()

    def _clean(self) -> None:
        if len(self._keys) > 2 * len(self) + _LEAST_STALE:
            self._keys = list(self) if self._is_in_order else sorted(self)
            self._head = 0

    def clear(self) -> None:
        """Forget all; any may come next."""
        super().clear()
        self._keys.clear()
        self._head = 0
        self._is_in_order = True

    def find(self, ledger_id: int, entry_id: int) -> DispatchBlock | None:
        """The block that holds an entry."""
        block = self.get((ledger_id, entry_id))
        if block is None and (index := bisect_right(self._keys, (ledger_id, entry_id))):
            # If the last one that begins below it has gone, no other holds it either.
            block = self.get(self._keys[index - 1])
            if block is None or block.ref.ledger_id != ledger_id or block.ref.last_entry_id < entry_id:
                return None
        return block

    def overlapping(self, ledger_id: int, first: int, last: int) -> Iterator[DispatchBlock]:
        """Yield the blocks that hold any of entries first..last.

        Each may be deleted before the next comes.
        """
        keys = self._keys
        start = max(bisect_right(keys, (ledger_id, first)) - 1, 0)
        for key in keys[start : bisect_right(keys, (ledger_id, last))]:
            block = self.get(key)
            if block is not None and block.ref.ledger_id == ledger_id and block.ref.last_entry_id >= first:
                yield block

    def up_to(self, position: tuple[int, int]) -> list[DispatchBlock]:
        """The blocks that begin at or below `position`, in order."""
        keys, head = self._keys, self._head
        while head < len(keys) and keys[head] not in self:
            head += 1
        self._head = head
        below = keys[head : bisect_right(keys, (position[0], position[1]), head)]
        return [block for key in below if (block := self.get(key)) is not None]
