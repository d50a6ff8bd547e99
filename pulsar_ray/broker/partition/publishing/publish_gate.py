"""Refuses blocks for a reason, or reads them no faster than the rate."""

from __future__ import annotations

import asyncio
import shutil
from enum import Enum
from pathlib import Path

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.clock import Clock
from pulsar_ray.errors import DiskSpaceLow, PulsarException
from pulsar_ray.model.rate_limit import RateLimit
from pulsar_ray.session.requests import Pong, encode_request
from pulsar_ray.session.session_table import Carrier, Session


class ClosedBy(Enum):
    """A condition that keeps a partition from storing.

    Of several that hold, a producer gets the error of the first one here.
    """

    TERMINATED = "end of the topic"
    DISK_SPACE = "disk space"
    BACKLOG_QUOTA = "backlog quota"


class PublishGate:
    """Open while no reason holds. Belongs to the owner loop; reading `refusal` costs an attribute."""

    def __init__(self) -> None:
        self._refusals: dict[ClosedBy, PulsarException] = {}
        self.refusal: PulsarException | None = None
        """The error for blocks that come now; None while the gate is open."""

    def set(self, reason: ClosedBy, refusal: PulsarException | None) -> None:
        """Close the gate for a reason with an error, or drop the reason with None."""
        if refusal is None:
            self._refusals.pop(reason, None)
        else:
            self._refusals[reason] = refusal
        self.refusal = next((self._refusals[r] for r in ClosedBy if r in self._refusals), None)

    def is_closed_by(self, reason: ClosedBy) -> bool:
        """Return whether this reason holds."""
        return reason in self._refusals


class DiskSpaceProbe:
    """Asks the disk, on the disk thread."""

    def __init__(self, directory: Path, policies: PartitionPolicies) -> None:
        self._directory = directory
        self._policies = policies

    def refusal(self) -> DiskSpaceLow | None:
        """Return the refusal of blocks while the disk is below its low-water mark.

        Publishing stops below the mark and goes on above it; acknowledging and trimming never stop.
        """
        usage = shutil.disk_usage(self._directory)
        mark = self._policies.settings.low_water_mark_bytes(usage.total)
        if usage.free >= mark:
            return None
        return DiskSpaceLow(
            f"the disk of {self._directory} has {usage.free:,} bytes free, below its low-water mark of "
            f"{mark:,}: free space, or lower disk_low_water_mark_bytes and restart the broker"
        )


class PublishThrottle:
    """Reads nothing from clients that have published more than the rate.

    They are read on once time has made up for it. The block that exceeds the rate is stored, and none is
    refused: later ones wait at the client, which sees a slow partition. Belongs to the owner loop.
    """

    def __init__(self, policies: PartitionPolicies, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._policies = policies
        self._clock = clock
        self._loop = loop
        self.limit: RateLimit | None = None
        """None while the topic has no rate: then nothing need be charged."""
        self._slowed: dict[Carrier, Session] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._slowest: int = 0
        """Bytes a second for a while, whatever the policies allow; 0: as they say."""
        self._lifting: asyncio.TimerHandle | None = None
        self.settings_changed()

    @property
    def is_slowing(self) -> bool:
        """Whether messages may wait unread."""
        return bool(self._slowed)

    def settings_changed(self) -> None:
        """Begin anew if the rate has changed: no former debt is paid."""
        settings = self._policies.settings
        of_bytes = settings.max_publish_rate_per_topic_in_bytes
        if self._slowest:
            of_bytes = min(of_bytes or self._slowest, self._slowest)
        rates = settings.max_publish_rate_per_topic_in_messages, of_bytes
        if self.limit is None or not self.limit.is_of(*rates):
            self.limit = RateLimit.of(*rates)
            self._go_on()

    def slow_down(self, bytes_per_s: int, for_ms: int) -> None:
        """Let no more pass than this for a while; 0 ends that at once."""
        if self._lifting is not None:
            self._lifting.cancel()
            self._lifting = None
        self._slowest = bytes_per_s
        self.settings_changed()
        if bytes_per_s:
            self._lifting = self._loop.call_later(for_ms / 1000, lambda: self.slow_down(0, 0))

    def charge(self, session: Session, messages: int, size: int) -> None:
        """Charge an admitted block; its client waits if that was more than the rate."""
        limit = self.limit
        assert limit is not None
        limit.take(messages, size, self._clock.monotonic_ms())
        self._slow(session)

    def opened(self, session: Session) -> None:
        """Let a client that opens a producer wait with the others.

        It may have attached anew, over a carrier that is read.
        """
        if self.limit is not None:
            self._slow(session)

    def _slow(self, session: Session) -> None:
        carrier, wait_s = session.carrier, self._wait_s()
        if not wait_s or carrier is None or carrier in self._slowed:
            return
        self._slowed[carrier] = session
        carrier.hold_reading(held=True)
        if self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._go_on)

    def _wait_s(self) -> float:
        return self.limit.wait_ms(self._clock.monotonic_ms()) / 1000 if self.limit is not None else 0.0

    def _go_on(self) -> None:
        """Read on from everybody, unless the debt is not paid yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._slowed:
            return
        if wait_s := self._wait_s():
            self._timer = self._loop.call_later(wait_s, self._go_on)
            return
        slowed, self._slowed = self._slowed, {}
        for carrier in slowed:
            # Packets that were held back may exceed the rate at once, and slow their client down again.
            carrier.hold_reading(held=False)

    def tick(self) -> None:
        """Send clients that wait a pong, and take them for alive; once a second.

        Their pings stand unread behind their messages.
        """
        for carrier, session in list(self._slowed.items()):
            if session.carrier is not carrier:
                del self._slowed[carrier]
                continue
            session.was_heard = True
            session.send(encode_request(Pong(0)))
