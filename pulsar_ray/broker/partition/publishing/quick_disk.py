"""Whether waiting for a disk costs less than changing threads twice."""

from __future__ import annotations

QUICK_S = 0.002
STALL_S = 0.010
TRIAL_WRITES = 32
SMALL_WRITE_BYTES = 64 * 1024
SMALL_WRITE_MESSAGES = 4
_WEIGHT = 1 / 32


class QuickDisk:
    """Trusts a disk whose small durable writes take less than 2 ms on average.

    After each stall it is on trial for 32 writes.

    A stall counts as 10 ms in the average, however long it was: what is to be known is how long the others
    take.
    """

    def __init__(self) -> None:
        self._average_s = STALL_S
        self._trial = TRIAL_WRITES
        self.is_trusted = False
        """Whether the next small write may be waited for."""

    def took(self, seconds: float) -> None:
        """A small write was durable after so long."""
        if seconds >= STALL_S:
            seconds = STALL_S
            self._trial = TRIAL_WRITES
        elif self._trial:
            self._trial -= 1
        self._average_s += (seconds - self._average_s) * _WEIGHT
        self.is_trusted = not self._trial and self._average_s < QUICK_S


def is_small(write_bytes: int, messages: int) -> bool:
    """Whether somebody may be waiting for a write, rather than sending a stream."""
    return messages <= SMALL_WRITE_MESSAGES and write_bytes <= SMALL_WRITE_BYTES
