"""Puts an actor to sleep that nobody uses, once the controller asks for it.

A sleeping actor is a process that has ended on purpose with all its state on disk (ADR 0032).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Protocol

from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.clock import Clock
from pulsar_ray.errors import PulsarException

logger = logging.getLogger(__name__)


class Idleness:
    """Compares, at each look, what changes whenever an actor is used.

    So using an actor costs nothing for this.
    """

    def __init__(self, now_ms: int, report_ms: int) -> None:
        self._since_ms = now_ms
        self._reported_ms = now_ms
        self._report_ms = report_ms
        self._activity: Hashable | None = None

    def look(self, now_ms: int, activity: Hashable | None) -> None:
        """Take a look; `activity` is None while something is under way."""
        if activity is None or activity != self._activity:
            self._since_ms = self._reported_ms = now_ms
        self._activity = activity

    def idle_ms(self, now_ms: int) -> int:
        """Return for how long the actor has been idle, as of the last look."""
        return now_ms - self._since_ms

    def take_report(self, now_ms: int) -> bool:
        """Return whether a report is due: after each further time of `report_ms` without use."""
        if now_ms - self._reported_ms < self._report_ms:
            return False
        self._reported_ms = now_ms
        return True


LONGEST_LOOK_S = 1.0
LOOKS_PER_REPORT = 4


@dataclass(frozen=True)
class Idle:
    """An actor's answer to how idle it is."""

    idle_ms: int
    """For how long nobody has used it; 0 while something is under way."""
    clients: int
    """Processes that have something open at it; a partition does not count its dispatchers."""
    can_park: bool
    """Whether these lose nothing if it sleeps."""


@dataclass(frozen=True)
class Retired:
    """An actor's farewell: it serves nobody any more, and its process may be killed."""

    wake_at_ms: int | None = None
    """When something that time brings will be due for it; None if nothing ever is."""
    clients: int = 0
    """Processes that were attached and had something open."""
    is_unused: bool = False
    """Whether nobody has used its topic for so long that its policies have it deleted."""


class SleepingServer(Protocol):
    """A server that can be put to sleep; everything runs on the owner loop."""

    can_park: bool
    """Whether clients that stay attached lose nothing if it sleeps."""

    def activity(self) -> Hashable | None:
        """Return what changes whenever the actor is used; None while something is under way."""

    async def settle(self) -> None:
        """Make durable what is only in memory, while it serves on. Raises PulsarException."""

    async def fall_asleep(self) -> Retired:
        """Close everything; nobody is served any more."""


class Sleeper:
    """Looks after one server, on its owner loop.

    `report` is called when the server has been idle for long, and again after each such time.
    """

    def __init__(
        self,
        server: SleepingServer,
        host: SessionHost,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        idle_seconds: float,
        report: Callable[[Idle], None],
    ) -> None:
        self._server = server
        self._host = host
        self._clock = clock
        self._loop = loop
        self._report = report
        self._is_reporting = idle_seconds > 0
        self._look_s = min(LONGEST_LOOK_S, max(0.02, idle_seconds / LOOKS_PER_REPORT))
        self._idleness = Idleness(clock.monotonic_ms(), int(idle_seconds * 1000))
        self._is_leaving = False
        self.has_left = False
        """Whether nothing is served any more, for good."""
        if self._is_reporting:
            loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        self._loop.call_later(self._look_s, self._look)
        if self._is_leaving:
            return
        idle = self.idle()
        if self._idleness.take_report(self._clock.monotonic_ms()):
            self._report(idle)

    def idle(self) -> Idle:
        """Look how idle the server is now."""
        now_ms = self._clock.monotonic_ms()
        self._idleness.look(now_ms, self._server.activity())
        return Idle(self._idleness.idle_ms(now_ms), self._host.clients, self._server.can_park)

    async def retire(self, least_idle_ms: int, *, with_clients: bool) -> Retired | None:
        """Leave with all state on disk, or return None if the server is used.

        `with_clients`: also while clients are attached that lose nothing by it. Once this has begun to leave
        nothing is taken any more: clients are sent that the actor sleeps.
        """
        if self._is_leaving or not self._may_leave(least_idle_ms, with_clients=with_clients):
            return None
        try:
            self._is_leaving = True
            self._is_leaving = await self._is_settled(with_clients=with_clients)
        except PulsarException as error:
            self._is_leaving = False
            logger.warning("an idle actor stays awake: %s", error)
        if not self._is_leaving:
            return None
        # From here to the end nothing can change the state any more.
        self.has_left = True
        clients = self._host.clients
        self._host.retire()
        await self._host.let_go()
        return replace(await self._server.fall_asleep(), clients=clients)

    async def _is_settled(self, *, with_clients: bool) -> bool:
        """Make everything durable; return whether nobody has used the server meanwhile."""
        before = self._server.activity()
        await self._server.settle()
        is_unused = before is not None and self._server.activity() == before
        return is_unused and self._are_clients_fine(with_clients=with_clients)

    def _may_leave(self, least_idle_ms: int, *, with_clients: bool) -> bool:
        idle = self.idle()
        return idle.idle_ms >= least_idle_ms and self._are_clients_fine(with_clients=with_clients)

    def _are_clients_fine(self, *, with_clients: bool) -> bool:
        return not self._host.clients or (with_clients and self._server.can_park)
