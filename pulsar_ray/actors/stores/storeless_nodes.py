"""Nodes without a store are looked at more and more seldom.

An actor on a node keeps Ray's autoscaler from taking it away, whatever the actor reserves (ADR 0146).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pulsar_ray.clock import growing_pauses_s

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0


class StorelessNodes:
    """It says which nodes nobody has to look at yet.

    Times are those of a monotonic clock.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, Iterator[float]] = {}
        self._next_look_s: dict[str, float] = {}

    def found(self, node_id: str, now_s: float) -> None:
        """Note that a look has found no store on a node."""
        if node_id not in self._pauses:
            self._pauses[node_id] = growing_pauses_s(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._next_look_s[node_id] = now_s + next(self._pauses[node_id])

    def left_alone(self, now_s: float) -> set[str]:
        """Return the nodes that nobody looks at now."""
        return {node_id for node_id, due_s in self._next_look_s.items() if now_s < due_s}

    def look_again(self) -> None:
        """Have all of them looked at next time, and seldom again from then on."""
        self._next_look_s.clear()

    def keep(self, node_ids: Collection[str]) -> None:
        """Forget all others, which have left or have a store by now."""
        for node_id in self._pauses.keys() - set(node_ids):
            del self._pauses[node_id]
            self._next_look_s.pop(node_id, None)
