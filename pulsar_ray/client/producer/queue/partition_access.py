"""Knows whether a producer may send to its partition."""

from __future__ import annotations

import time

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlocks
from pulsar_ray.errors import PulsarException, WrongNode
from pulsar_ray.transport.carriers import Connection

PATIENCE_S = 2.0
"""How long an actor that is not open counts as there.

One that died is restarted within about a second.
"""
SILENCE_S = 1800.0
"""After so long without its partition a producer counts anew.

Less than the time after which partitions forget where a producer without a session was.
"""


class PartitionAccess:
    """Tells whether the partition is open, asleep or away, or the queue has ended.

    It wakes a partition that sleeps. The queue's state lock guards it; `is_open` may be read without
    the lock.
    """

    __slots__ = (
        "_absent_since_opening",
        "_link",
        "_numbers",
        "_unconfirmed",
        "carrier",
        "closed_at_s",
        "error",
        "is_open",
    )

    def __init__(self, link: EndpointLink, numbers: BlockNumbers, unconfirmed: UnconfirmedBlocks) -> None:
        self._link = link
        self._numbers = numbers
        self._unconfirmed = unconfirmed
        self.is_open = False
        """Whether blocks may be written."""
        self.carrier: Connection | None = None
        """The carrier on which the producer was opened last, until that is lost."""
        self.error: PulsarException | None = None
        """Set once, by what ended the queue."""
        self.closed_at_s = 0.0
        """When the last carrier was lost (time.monotonic)."""
        self._absent_since_opening: WrongNode | None = None
        """Why it could not be opened, until it is."""

    def await_opening(self, absence: WrongNode) -> None:
        """Take the partition for absent before it has answered for the first time."""
        self._absent_since_opening = absence.again()

    def answered(self) -> None:
        """Forget why the partition did not answer."""
        self._absent_since_opening = None

    def open_on(self, carrier: Connection) -> None:
        """Let blocks be written to `carrier`; what an incarnation replaced is known there."""
        self.carrier = carrier
        self.is_open = True
        self._numbers.replaces = 0

    def lost_carrier(self) -> None:
        """Let nothing be written: the carrier is gone."""
        self.is_open = False
        self.carrier = None
        self.closed_at_s = time.monotonic()

    def suspend(self) -> None:
        """Let nothing be written before the producer is open again, on whatever carrier."""
        self.is_open = False

    def end(self, error: PulsarException) -> None:
        """Raise `error` from now on."""
        self.is_open = False
        self.error = error.again()

    def raise_if_ended(self) -> None:
        """Raise what ended the queue, if anything did."""
        if self.error is not None:
            raise self.error.again()

    @property
    def absence(self) -> WrongNode | None:
        """Why the partition is away, if that is known."""
        if self.is_open:
            return None
        return self._link.absence or self._absent_since_opening

    @property
    def takes_keyless(self) -> bool:
        """Whether messages that may go to any partition should come to this one.

        They should not while it is away, or silent.
        """
        if self.is_open or self._link.is_parked:
            return True
        return self.absence is None and time.monotonic() - self.closed_at_s < PATIENCE_S

    def ensure(self) -> None:
        """Wake the partition if it sleeps.

        Raises what ended the queue, and WrongNode if the partition is known to be away.
        """
        self.raise_if_ended()
        self.ensure_there()

    def ensure_there(self) -> None:
        """Wake the partition if it sleeps. Raises WrongNode if it is known to be away."""
        if self.is_open:
            return
        if (absence := self.absence) is not None:
            raise absence.again()
        if self._link.is_parked:
            now_s = time.monotonic()
            if now_s - self.closed_at_s > SILENCE_S and not self._unconfirmed.messages:
                # Before the first block gets a number: later it could not be told from one that was lost.
                self._numbers.renew_unreplaced()
            self.closed_at_s = now_s
            self._link.wake()
