"""The log of a subscription whose entries pass by: there is none."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.model.position import EARLIEST


class NoLog:
    """An empty log, and a `Feeder` that never has anything."""

    problem = ""
    last = EARLIEST

    def feed(self, resume: Callable[[], None]) -> bool:
        return False

    def extend_to_end(self) -> None:
        """Extend nothing."""

    def extend_ledgers(self) -> None:
        """Extend nothing."""

    def forget_place(self) -> None:
        """Forget nothing."""
