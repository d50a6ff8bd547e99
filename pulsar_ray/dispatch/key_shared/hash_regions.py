"""Which consumer owns which slots, by hash ranges, a ring, or what consumers declare."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.key_shared.sticky_key import SLOTS, Slotting, slots_of
from pulsar_ray.errors import ConsumerAssignError
from pulsar_ray.model.enums import KeySharedMode


@dataclass(frozen=True)
class KeySharedSpec:
    """How a consumer wants a Key_Shared subscription; `sticky_ranges` are inclusive pairs in 0..65535."""

    mode: KeySharedMode = KeySharedMode.AutoSplit
    allow_out_of_order_delivery: bool = False
    sticky_ranges: tuple[tuple[int, int], ...] = ()


DEFAULT_KEY_SHARED = KeySharedSpec()


def key_shared_spec(reported: Any) -> KeySharedSpec:
    """Read a client's request: (mode, allows out of order delivery, ranges), or None.

    None stands for the defaults.

    Raises ConsumerAssignError for anything else.
    """
    if reported is None:
        return DEFAULT_KEY_SHARED
    try:
        mode, allow_out_of_order_delivery, ranges = reported
        declared = tuple((first, last) for first, last in ranges)
        spec = KeySharedSpec(KeySharedMode(mode), bool(allow_out_of_order_delivery), declared)
    except (TypeError, ValueError) as error:
        raise ConsumerAssignError(f"{reported!r:.200} is no Key_Shared policy: {error}") from None
    if any(type(edge) is not int for pair in declared for edge in pair):
        raise ConsumerAssignError(f"sticky ranges {declared!r:.200} are not pairs of int")
    return spec


class Region(NamedTuple):
    """Slots first..last belong to a consumer."""

    first: int
    last: int
    incarnation: int


class HashRegions(Protocol):
    """Divides the slots among consumers; the rest of them belong to nobody."""

    slotting: Slotting

    def add(self, incarnation: int, name: str, spec: KeySharedSpec) -> None:
        """A consumer comes. Raises ConsumerAssignError, and then nothing has changed."""

    def remove(self, incarnation: int) -> None:
        """A consumer goes."""

    def regions(self) -> list[Region]:
        """All regions, in order; neighbours have different owners."""


def joined(regions: Iterable[Region]) -> list[Region]:
    """Regions in order, with neighbours of one owner made one."""
    found: list[Region] = []
    for region in regions:
        if found and found[-1].incarnation == region.incarnation and found[-1].last + 1 == region.first:
            found[-1] = found[-1]._replace(last=region.last)
        else:
            found.append(region)
    return found


class AutoSplitRanges:
    """Half-open regions over 0..65535, always all of it while there is a consumer.

    Of equal regions the lowest is split. The region of a leaving consumer goes to its right neighbour, the
    rightmost to its left.
    """

    slotting = Slotting.RANGE

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []  # (end, incarnation), in order

    def add(self, incarnation: int, name: str, spec: KeySharedSpec) -> None:
        """Split the largest region. Raises ConsumerAssignError once no region has two slots."""
        if not self._ends:
            self._ends.append((SLOTS, incarnation))
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
        self._ends.insert(index, (self._ends[index][0] - widest // 2, incarnation))

    def remove(self, incarnation: int) -> None:
        """Give its region to a neighbour."""
        index = next((i for i, (_, owner) in enumerate(self._ends) if owner == incarnation), None)
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


class HashRing:
    """A slot belongs to the first point at or above it, going round.

    Points of one slot are first come, first served; the next in line takes over when their owner leaves.
    Consumers of one name are told apart by the lowest index that is free.
    """

    slotting = Slotting.RING

    def __init__(self, replica_points: int) -> None:
        self._replica_points = replica_points
        self._points: SortedDict = SortedDict()  # slot -> incarnations, in order of coming
        self._names: dict[int, tuple[str, int]] = {}

    def add(self, incarnation: int, name: str, spec: KeySharedSpec) -> None:
        """Set a consumer's points on the ring.

        The hashed text is UTF-8 of its name, NUL, name index, NUL, 1 to the number of points.
        """
        taken = {index for other, index in self._names.values() if other == name}
        index = next(number for number in range(len(taken) + 1) if number not in taken)
        self._names[incarnation] = (name, index)
        for slot in self._slots_of(incarnation):
            self._points.setdefault(slot, []).append(incarnation)

    def remove(self, incarnation: int) -> None:
        """Take its points away."""
        if incarnation not in self._names:
            return
        for slot in self._slots_of(incarnation):
            waiting = self._points[slot]
            waiting.remove(incarnation)
            if not waiting:
                del self._points[slot]
        del self._names[incarnation]

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

    def _slots_of(self, incarnation: int) -> list[int]:
        name, index = self._names[incarnation]
        points = (f"{name}\0{index}\0{number}" for number in range(1, self._replica_points + 1))
        slots: list[int] = slots_of(points, self.slotting).tolist()
        return slots


class StickyRanges:
    """Inclusive ranges in 0..65535 that may leave gaps, but not overlap."""

    slotting = Slotting.RANGE

    def __init__(self) -> None:
        self._ranges: dict[int, tuple[tuple[int, int], ...]] = {}
        self._names: dict[int, str] = {}

    def add(self, incarnation: int, name: str, spec: KeySharedSpec) -> None:
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
        self._ranges[incarnation] = ranges
        self._names[incarnation] = name

    def remove(self, incarnation: int) -> None:
        """Its slots belong to nobody."""
        self._ranges.pop(incarnation, None)
        self._names.pop(incarnation, None)

    def regions(self) -> list[Region]:
        """The declared ranges, in order."""
        return sorted(
            Region(first, last, owner) for owner, ranges in self._ranges.items() for first, last in ranges
        )
