"""Whether anybody takes entries; while nobody does, the partition need not send new ones."""

from __future__ import annotations

SATISFIED_TICKS = 2


class DemandTracker:
    """Demand is satisfied after two ticks without room or grants, until somebody has room.

    So consumers that are only busy for a moment do not make their dispatcher come and go.
    """

    def __init__(self) -> None:
        self.is_satisfied = False
        self._ticks = 0

    def granted(self) -> None:
        """Somebody was given something."""
        self._ticks = 0

    def tick(self, *, has_room: bool) -> None:
        """Once a second."""
        self._ticks = 0 if has_room else self._ticks + 1
        self.is_satisfied = self._ticks >= SATISFIED_TICKS

    def has_returned(self, *, has_room: bool) -> bool:
        """Whether it was lost, and is not any more."""
        if not (self.is_satisfied and has_room):
            return False
        self.is_satisfied = False
        self._ticks = 0
        return True
