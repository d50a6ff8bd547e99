"""STICKY: consumers declare the slots they want; what nobody declares waits."""

from __future__ import annotations

from itertools import pairwise

from pulsar_ray.dispatch.key_shared.hash_regions import KeySharedSpec, Region
from pulsar_ray.dispatch.key_shared.sticky_key import SLOTS, Slotting
from pulsar_ray.errors import ConsumerAssignError


class StickyRanges:
    """Inclusive ranges in 0..65535 that may leave gaps, but not overlap."""

    slotting = Slotting.RANGE

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[tuple[int, int], ...]] = {}
        self._names: dict[int, str] = {}

    def add(self, consumer_id: int, name: str, spec: KeySharedSpec) -> None:
        """Take a consumer's ranges.

        Raises ConsumerAssignError if they are missing, malformed, or overlap each other or other consumers'.
        """
        ranges = tuple(sorted(spec.sticky_ranges))
        if not ranges:
            raise ConsumerAssignError(f"sticky consumer {name!r} declares no ranges: give sticky_ranges")
        for first, last in ranges:
            if not 0 <= first <= last < SLOTS:
                raise ConsumerAssignError(
                    f"sticky range [{first}, {last}] of consumer {name!r} is no range within 0..{SLOTS - 1}"
                )
        for one, other in pairwise(ranges):
            if other[0] <= one[1]:
                raise ConsumerAssignError(
                    f"sticky ranges {list(one)} and {list(other)} of consumer {name!r} overlap"
                )
        for first, last, owner in self.regions():
            for mine in ranges:
                if mine[0] <= last and first <= mine[1]:
                    raise ConsumerAssignError(
                        f"sticky range {list(mine)} of consumer {name!r} overlaps [{first}, {last}] of "
                        f"{self._names[owner]!r}: declare another range, or close that consumer"
                    )
        self._ranges[consumer_id] = ranges
        self._names[consumer_id] = name

    def remove(self, consumer_id: int) -> None:
        """Its slots belong to nobody."""
        self._ranges.pop(consumer_id, None)
        self._names.pop(consumer_id, None)

    def regions(self) -> list[Region]:
        """The declared ranges, in order."""
        return sorted(
            Region(first, last, owner) for owner, ranges in self._ranges.items() for first, last in ranges
        )
