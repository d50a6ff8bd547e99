"""Decides when stores that are away are taken over, and by whom (ADR 0137).

It is told at each look which stores are away, and by others what became of its decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

LONGEST_GAP_S = 15.0
"""More than that between two looks was no time in which anybody could have answered."""
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0


@dataclass(slots=True)
class _Absence:
    lasted_s: float = 0.0
    is_running: bool = False
    failures: int = 0
    retry_s: float = 0.0
    """The age of the absence at which it is tried again."""
    reason: str = ""
    is_done: bool = False
    left: int = 0
    """So many partitions wait for the disk, since they were never shipped."""


class NodeLosses:
    """Knows how long stores have been away, and which of them are taken over.

    With `after_s` 0 none ever is. A time counts only while somebody looks: a controller that was stopped, or
    has just begun, takes nobody for lost.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._absences: dict[str, _Absence] = {}
        self._looked_s: float | None = None

    def look(self, now: float, away: Collection[str]) -> list[str]:
        """Take in which stores are away, and return those to be taken over."""
        passed = 0.0 if self._looked_s is None else min(max(now - self._looked_s, 0.0), LONGEST_GAP_S)
        self._looked_s = now
        if not self._after_s:
            return []
        for store_id in [each for each in self._absences if each not in away]:
            if not self._absences[store_id].is_running:
                del self._absences[store_id]
        for store_id in away:
            known = self._absences.get(store_id)
            if known is None:
                self._absences[store_id] = _Absence()
            else:
                known.lasted_s += passed
        return sorted(store_id for store_id, each in self._absences.items() if self._is_due(each))

    def _is_due(self, absence: _Absence) -> bool:
        if absence.is_running or absence.is_done:
            return False
        return absence.lasted_s >= max(self._after_s, absence.retry_s)

    def begun(self, store_id: str) -> None:
        """Take in that a store is being taken over."""
        self._absences[store_id].is_running = True

    def failed(self, store_id: str, reason: str) -> None:
        """Take in why a store could not be taken over; it is tried again."""
        absence = self._absences[store_id]
        wait_s = min(FIRST_RETRY_S * 2**absence.failures, LONGEST_RETRY_S)
        absence.is_running, absence.reason = False, reason
        absence.failures += 1
        absence.retry_s = absence.lasted_s + wait_s

    def done(self, store_id: str, left: int) -> None:
        """Take in that others have all but `left` partitions, which were not shipped."""
        absence = self._absences[store_id]
        absence.is_running, absence.is_done, absence.left, absence.reason = False, True, left, ""

    def describe(self, store_id: str) -> str:
        """Say what is done about a store that is away; "" if nothing is."""
        absence = self._absences.get(store_id)
        if absence is None:
            return ""
        if absence.is_running:
            return "its partitions are being taken over by other stores"
        if absence.is_done:
            return (
                f"what it had shipped was taken over; {absence.left} partitions were never shipped, and come "
                "back only with its disk: bring that, or give them up with `pulsar-ray stores forget`"
            )
        if absence.failures:
            wait_s = max(absence.retry_s - absence.lasted_s, 0.0)
            return f"is not taken over yet: {absence.reason}; tried again in {wait_s:.0f} s"
        wait_s = max(self._after_s - absence.lasted_s, 0.0)
        return f"is taken over by other stores in {wait_s:.0f} s, unless it comes back"


@dataclass(frozen=True, slots=True)
class Room:
    """Describes a store that could take partitions."""

    partitions: int
    free_bytes: int
    has_room: bool


def shared_out(partitions: Sequence[str], rooms: Mapping[str, Room]) -> dict[str, list[str]]:
    """Give partitions to stores, each to the one with the fewest by then.

    Of equal stores the one with more free bytes is first. Nothing is given where there is no room.
    """
    loads = {store_id: room.partitions for store_id, room in rooms.items() if room.has_room}
    shares: dict[str, list[str]] = {}
    for partition in partitions if loads else ():
        target = min(loads, key=lambda store_id: (loads[store_id], -rooms[store_id].free_bytes, store_id))
        loads[target] += 1
        shares.setdefault(target, []).append(partition)
    return shares
