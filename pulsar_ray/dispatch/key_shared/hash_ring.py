"""AUTO_SPLIT by consistent hashing: each consumer has points on a ring of the slots 1..65535."""

from __future__ import annotations

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.key_shared.hash_regions import KeySharedSpec, Region, joined
from pulsar_ray.dispatch.key_shared.sticky_key import SLOTS, Slotting, slots_of


class HashRing:
    """A slot belongs to the first point at or above it, going round.

    Points of one slot are first come, first served; the next in line takes over when their owner leaves.
    Consumers of one name are told apart by the lowest index that is free.
    """

    slotting = Slotting.RING

    def __init__(self, replica_points: int) -> None:
        self._replica_points = replica_points
        self._points: SortedDict = SortedDict()  # slot -> consumer ids, in order of coming
        self._names: dict[int, tuple[str, int]] = {}

    def add(self, consumer_id: int, name: str, spec: KeySharedSpec) -> None:
        """Set a consumer's points on the ring.

        The hashed text is UTF-8 of its name, NUL, name index, NUL, 1 to the number of points.
        """
        taken = {index for other, index in self._names.values() if other == name}
        index = next(number for number in range(len(taken) + 1) if number not in taken)
        self._names[consumer_id] = (name, index)
        for slot in self._slots_of(consumer_id):
            self._points.setdefault(slot, []).append(consumer_id)

    def remove(self, consumer_id: int) -> None:
        """Take its points away."""
        if consumer_id not in self._names:
            return
        for slot in self._slots_of(consumer_id):
            waiting = self._points[slot]
            waiting.remove(consumer_id)
            if not waiting:
                del self._points[slot]
        del self._names[consumer_id]

    def regions(self) -> list[Region]:
        """Return the regions below each point.

        Slots above the last one belong to the first point's owner.
        """
        found: list[Region] = []
        start = 1
        for slot, owners in self._points.items():
            found.append(Region(start, slot, owners[0]))
            start = slot + 1
        if self._points and start < SLOTS:
            found.append(Region(start, SLOTS - 1, self._points.peekitem(0)[1][0]))
        return joined(found)

    def _slots_of(self, consumer_id: int) -> list[int]:
        name, index = self._names[consumer_id]
        points = (f"{name}\0{index}\0{number}" for number in range(1, self._replica_points + 1))
        slots: list[int] = slots_of(points, self.slotting).tolist()
        return slots
