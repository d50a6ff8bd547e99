"""Decides which segments leave a disk that is too full (ADR 0142)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

STALE_S = 25.0
"""Partitions that offered nothing for so long have left, or sleep."""
FREED_WITHIN_S = 600.0
"""A grant counts as free for so long, unless its partition asks again before."""


class Offer(NamedTuple):
    """A partition offers a closed segment, with the time of its file."""

    written_s: float
    name: str
    bytes: int


@dataclass(slots=True)
class _Partition:
    percent: int
    offers: Sequence[Offer]
    heard_s: float
    granted_bytes: int = 0


@dataclass(slots=True)
class RoomPlan:
    """It takes the offers of a node's partitions, and grants the oldest of all.

    As many are granted as have to go, and less than a segment more.
    Every partition asks again and again while the disk is too full for it. The first time it is only heard:
    by its next time all others have been.
    """

    _partitions: dict[str, _Partition] = field(default_factory=dict)

    def asked(
        self, partition: str, disk: tuple[int, int], percent: int, offers: Sequence[Offer], now_s: float
    ) -> list[str]:
        """Return the names of the segments that a partition is to leave.

        `disk` are the bytes that are used and all it has; the disk is too full for the partition while
        `percent` of it are used. `offers` are in the order of the log.
        """
        known = self._partitions
        for other in [other for other, told in known.items() if self._is_past(told, now_s)]:
            del known[other]
        is_first = partition not in known or known[partition].heard_s < now_s - STALE_S
        known[partition] = asking = _Partition(percent, offers, now_s)
        if is_first:
            return []
        used, total = disk
        used -= sum(told.granted_bytes for told in known.values())
        granted = []
        for owner, offer, most in self._by_age():
            if used * 100 < total * most:
                continue
            used -= offer.bytes
            if owner == partition:
                granted.append(offer)
        asking.granted_bytes = sum(offer.bytes for offer in granted)
        return [offer.name for offer in granted]

    @staticmethod
    def _is_past(told: _Partition, now_s: float) -> bool:
        return told.heard_s < now_s - (FREED_WITHIN_S if told.granted_bytes else STALE_S)

    def _by_age(self) -> list[tuple[str, Offer, int]]:
        """Return what is offered by those that leave nothing just now, the oldest first."""
        found = []
        for partition, told in self._partitions.items():
            at_least = 0.0
            for offer in () if told.granted_bytes else told.offers:
                # A segment goes behind those before it in its log, whatever its file says.
                at_least = max(at_least, offer.written_s)
                found.append((at_least, partition, offer, told.percent))
        found.sort(key=lambda each: each[:2])
        return [each[1:] for each in found]
