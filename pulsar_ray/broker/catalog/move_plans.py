"""Decides which partitions move by themselves, and where to (ADR 0144)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pulsar_ray.broker.catalog.node_losses import Room

FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0


def balanced(partitions: Mapping[str, Sequence[int]], rooms: Mapping[str, Room]) -> dict[int, str]:
    """Return which partitions go to which stores, so that all have about as many.

    As few move as can be. `partitions` are those of each store; nothing goes to a store that has no room.
    """
    left = {store_id: list(numbers) for store_id, numbers in partitions.items()}
    counts = {store_id: len(numbers) for store_id, numbers in left.items()}
    open_to = [store_id for store_id in counts if store_id in rooms and rooms[store_id].has_room]
    moves: dict[int, str] = {}
    while open_to:
        target = min(open_to, key=lambda store_id: (counts[store_id], -rooms[store_id].free_bytes, store_id))
        source = max(counts, key=lambda store_id: (counts[store_id], store_id))
        if counts[source] - counts[target] < 2 or not left[source]:
            break
        moves[left[source].pop()] = target
        counts[source] -= 1
        counts[target] += 1
    return moves


@dataclass(slots=True)
class _Failure:
    count: int
    again_s: float
    reason: str


class Retries:
    """Knows which partitions could not be moved by themselves, and when that is tried again."""

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}

    def failed(self, number: int, now: float, reason: str) -> None:
        """Take in why a partition has stayed."""
        count = self._failures[number].count if number in self._failures else 0
        wait_s = min(FIRST_RETRY_S * 2**count, LONGEST_RETRY_S)
        self._failures[number] = _Failure(count + 1, now + wait_s, reason)

    def forget(self, number: int) -> None:
        """Take in that a partition has moved."""
        self._failures.pop(number, None)

    def due(self, numbers: Iterable[int], now: float) -> list[int]:
        """Return those that are tried now; others of which nothing was heard are forgotten."""
        wanted = list(numbers)
        return [each for each in wanted if each not in self._failures or self._failures[each].again_s <= now]

    def reason(self, numbers: Iterable[int]) -> str:
        """Return why one of these could not be moved; "" if none failed."""
        reasons = (self._failures[each].reason for each in numbers if each in self._failures)
        return next(reasons, "")
