"""Spread the messages and bytes that a batch may have over partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.streaming.planned_batch import Place

_WITHOUT_LIMIT = 1 << 62
_ROUNDS = 4


@dataclass(frozen=True)
class BatchLimits:
    """Bound the messages and stored bytes of a batch; None: as many as there are."""

    messages: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("messages", self.messages), ("bytes", self.bytes)):
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidConfiguration(f"max_{name}_per_trigger={value!r}: give an int of at least 1")

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return self.messages is not None or self.bytes is not None


class Measured(NamedTuple):
    """Where so many messages of a partition end, and how many there were."""

    end: Place
    messages: int
    stored_bytes: int


class Measure(Protocol):
    """Finds the end of a range within limits; see `measure_range` of a partition."""

    def __call__(
        self, partition: str, first: Place, end: Place, messages: int, stored_bytes: int, takes_one: bool
    ) -> Measured: ...


def ends_within(
    limits: BatchLimits, ranges: Mapping[str, tuple[Place, Place]], measure: Measure, turn: int
) -> dict[str, Place]:
    """Choose the ends of a batch within limits, of partitions with messages in it.

    Each partition with messages gets an equal share, and what one leaves goes to the others. `turn` says
    whose turn it is first: with fewer messages than partitions each has its turn. The first message of a
    batch is taken however large it is, so that there is always a next one.
    """
    if not limits.are_set:
        behind = {name: (first, end) for name, (first, end) in ranges.items() if first < end}
        for name, (first, end) in behind.items():
            measure(name, first, end, 1, _WITHOUT_LIMIT, True)  # the partition keeps them from now on
        return {name: end for name, (_, end) in behind.items()}
    return _Sharing(limits, ranges, measure).share(_turned(sorted(ranges), turn))


def _turned(names: Sequence[str], turn: int) -> list[str]:
    at = turn % len(names) if names else 0
    return [*names[at:], *names[:at]]


class _Sharing:
    def __init__(
        self, limits: BatchLimits, ranges: Mapping[str, tuple[Place, Place]], measure: Measure
    ) -> None:
        self._ranges = ranges
        self._measure = measure
        self._messages = limits.messages or _WITHOUT_LIMIT
        self._bytes = limits.bytes or _WITHOUT_LIMIT
        self._ends: dict[str, Place] = {}

    def share(self, names: list[str]) -> dict[str, Place]:
        """Share messages and bytes until none are left, or no partition has more."""
        for _ in range(_ROUNDS):
            left = self._messages
            names = self._share_once(names)
            if not names or self._messages in (0, left):
                break
        return self._ends

    def _share_once(self, names: list[str]) -> list[str]:
        hungry = []
        for place, name in enumerate(names):
            others = len(names) - place
            messages, size = -(-self._messages // others), -(-self._bytes // others)
            if messages <= 0 or (size <= 0 and self._ends):
                break
            first, end = self._ranges[name]
            at = self._ends.get(name, first)
            found = self._measure(name, at, end, messages, max(size, 1), not self._ends)
            # A range without any is one that was trimmed: reading it tells.
            if found.messages or at < found.end == end:
                self._ends[name] = found.end
            self._messages -= found.messages
            self._bytes -= found.stored_bytes
            if found.end < end:
                hungry.append(name)
        return hungry
