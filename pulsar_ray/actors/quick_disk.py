"""Whether a disk is so quick that waiting for it costs less than changing threads twice."""

from __future__ import annotations

QUICK_S = 0.001
STALL_S = 0.010
TRIAL_WRITES = 1000
SMALL_WRITE_BYTES = 64 * 1024
SMALL_WRITE_BLOCKS = 4
_WEIGHT = 1 / 32


class QuickDisk:
    """Trusts a disk whose small durable writes take less than 1 ms on average, 1,000 writes after each stall.

    A single one of 10 ms is a stall: whoever waits for the disk could have answered others meanwhile. At
    worst that happens to one write in a thousand.
    """

    def __init__(self) -> None:
        self._average_s = STALL_S
        self._trial = TRIAL_WRITES

    @property
    def is_trusted(self) -> bool:
        """Whether the next small write may be waited for."""
        return not self._trial and self._average_s < QUICK_S

    def took(self, seconds: float) -> None:
        """A small write was durable after so long."""
        self._average_s += (seconds - self._average_s) * _WEIGHT
        if seconds >= STALL_S:
            self._trial = TRIAL_WRITES
        elif self._trial:
            self._trial -= 1


def is_small(write_bytes: int, blocks: int) -> bool:
    """Whether a write is one that somebody may be waiting for, rather than one of many in a stream."""
    return write_bytes <= SMALL_WRITE_BYTES and blocks <= SMALL_WRITE_BLOCKS
