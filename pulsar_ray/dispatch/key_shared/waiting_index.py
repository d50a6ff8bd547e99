"""Which waiting blocks have rows for which consumer, or for a slot that waits."""

from __future__ import annotations

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import DispatchBlock
from pulsar_ray.dispatch.key_shared.key_routes import KeyRoutes, rows_of_slot
from pulsar_ray.model.row_sets import RowSet, numbers_of
from pulsar_ray.numpy_on_demand import np

Key = tuple[int, int]


class Parked:
    """Blocks with rows of one slot that waits, and the time of the first."""

    __slots__ = ("blocks", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.blocks: SortedDict = SortedDict()
        self.since_ms = since_ms


class WaitingIndex:
    """Saves looking at every waiting block each time: a dispatch costs what it gives out.

    Entries may be stale: whoever takes from a block looks at its rows. Every waiting row of a block that was
    put in is found through `ready` or `parked`.
    """

    def __init__(self, routes: KeyRoutes) -> None:
        self._routes = routes
        self.ready: list[SortedDict] = []
        """By number of the consumer: blocks in the order of the log."""
        self.parked: dict[int, Parked] = {}

    def put(self, block: DispatchBlock, now_ms: int) -> None:
        """Find out where the waiting rows of a block may go."""
        if not block.waiting:
            return
        slots = block.slots
        if isinstance(slots, int):
            number = int(self._routes.table[slots])
            if number >= 0:
                self.ready[number][block.key] = block
            else:
                self._park(slots, block, now_ms)
            return
        assert slots is not None
        waiting = counted_rows.rows_of(block.waiting)
        for number, rows in self._routes.shares(block).items():
            if not rows & waiting:
                continue
            if number >= 0:
                self.ready[number][block.key] = block
            else:
                for slot in np.unique(slots[numbers_of(rows & waiting)]).tolist():
                    self._park(slot, block, now_ms)

    def free(self, slot: int, now_ms: int) -> None:
        """A slot does not wait any more: what waits of it goes to its owner."""
        parked = self.parked.pop(slot, None)
        number = int(self._routes.table[slot])
        if parked is not None:
            if number >= 0:
                self.ready[number].update(parked.blocks)
            else:
                for block in parked.blocks.values():
                    self._park(slot, block, now_ms)

    def parked_through(self, slot: int, key: Key) -> list[tuple[DispatchBlock, RowSet]]:
        """Return the parked rows of a slot, by block, up to this key in order."""
        parked = self.parked.get(slot)
        if parked is None:
            return []
        found = []
        for block in [parked.blocks[at] for at in parked.blocks.irange(None, key)]:
            if rows := counted_rows.rows_of(block.waiting) & rows_of_slot(block, slot):
                found.append((block, rows))
            else:
                del parked.blocks[block.key]
        return found

    def rebuild(self, waiting: SortedDict, now_ms: int) -> None:
        """Owners have changed: look at all waiting blocks again."""
        before = self.parked
        self.clear()
        for block in waiting.values():
            self.put(block, now_ms)
        for slot, parked in self.parked.items():
            if slot in before:
                parked.since_ms = before[slot].since_ms

    def clear(self) -> None:
        """Nothing waits."""
        self.ready = [SortedDict() for _ in self._routes.consumers]
        self.parked = {}

    def _park(self, slot: int, block: DispatchBlock, now_ms: int) -> None:
        if (parked := self.parked.get(slot)) is None:
            parked = self.parked[slot] = Parked(now_ms)
        parked.blocks[block.key] = block
        self._routes.draining.block(slot)
