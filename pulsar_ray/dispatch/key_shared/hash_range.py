"""AUTO_SPLIT by hash range: a new consumer takes the lower half of the largest region."""

from __future__ import annotations

from pulsar_ray.dispatch.key_shared.hash_regions import KeySharedSpec, Region
from pulsar_ray.dispatch.key_shared.sticky_key import SLOTS, Slotting
from pulsar_ray.errors import ConsumerAssignError


class AutoSplitRanges:
    """Half-open regions over 0..65535, always all of it while there is a consumer.

    Of equal regions the lowest is split. The region of a leaving consumer goes to its right neighbour, the
    rightmost to its left.
    """

    slotting = Slotting.RANGE

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []  # (end, consumer id), in order

    def add(self, consumer_id: int, name: str, spec: KeySharedSpec) -> None:
        """Split the largest region. Raises ConsumerAssignError once no region has two slots."""
        if not self._ends:
            self._ends.append((SLOTS, consumer_id))
            return
        widest, start, index = 0, 0, 0
        for i, (end, _) in enumerate(self._ends):
            if end - start > widest:
                widest, index = end - start, i
            start = end
        if widest < 2:
            raise ConsumerAssignError(
                f"consumer {name!r} gets no keys: there are {SLOTS} consumers, one for each hash"
            )
        self._ends.insert(index, (self._ends[index][0] - widest // 2, consumer_id))

    def remove(self, consumer_id: int) -> None:
        """Give its region to a neighbour."""
        index = next((i for i, (_, owner) in enumerate(self._ends) if owner == consumer_id), None)
        if index is None:
            return
        end, _ = self._ends.pop(index)
        if index == len(self._ends) and self._ends:
            self._ends[-1] = (end, self._ends[-1][1])

    def regions(self) -> list[Region]:
        """One region each, in order."""
        starts = [0, *(end for end, _ in self._ends)]
        return [
            Region(start, end - 1, owner) for start, (end, owner) in zip(starts, self._ends, strict=False)
        ]
