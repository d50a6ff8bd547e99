"""The numbers by which a partition recognises a producer's blocks.

They are the incarnation, and a running number per entry.
"""

from __future__ import annotations

import secrets


class BlockNumbers:
    """Counts the entries of one producer at one partition; its state lock guards them."""

    __slots__ = ("incarnation", "next_seq", "replaces")

    def __init__(self) -> None:
        self.incarnation = secrets.randbits(63) | 1
        self.replaces = 0
        """The incarnation that was given up, until the partition knows of it.

        The partition then refuses what is left of that one.
        """
        self.next_seq = 0

    def take(self, entries: int) -> None:
        """A block of so many entries got `next_seq`."""
        self.next_seq += entries

    def renew(self) -> None:
        """Give this incarnation up and count from 0 in a new one."""
        self.replaces = self.incarnation
        self.renew_unreplaced()

    def renew_unreplaced(self) -> None:
        """Count from 0 in a new incarnation, because the partition has forgotten this one.

        Nothing of the former may be unconfirmed.
        """
        self.incarnation = secrets.randbits(63) | 1
        self.next_seq = 0
