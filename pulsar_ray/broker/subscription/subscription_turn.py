"""Electing, feeding the core and sending its grants, after anything that happens to a subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers
from pulsar_ray.broker.subscription.cursor_flusher import CursorDurability
from pulsar_ray.broker.subscription.log.core_feeder import CoreFeeder
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.subscription_stats import ConsumerTraffic
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.dispatcher import Dispatcher

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


class SubscriptionTurn:
    """Takes one turn for all that happened in one turn of the owner loop.

    `on_demand` is called when consumers have room again after a while without.
    """

    def __init__(
        self,
        core: Dispatcher,
        log: LogView,
        feeder: CoreFeeder,
        consumers: ConnectedConsumers,
        durability: CursorDurability,
        traffic: ConsumerTraffic,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        on_demand: Callable[[], None],
    ) -> None:
        self._core = core
        self._log = log
        self._feeder = feeder
        self._resume = self.run
        self._consumers = consumers
        self._durability = durability
        self._traffic = traffic
        self._clock = clock
        self._loop = loop
        self._on_demand = on_demand
        self.ask_tracker: Callable[[], None] | None = None
        """Called after each turn while delayed messages are left to a tracker."""
        self._demand = DemandTracker()
        self._is_scheduled = False
        self._has_opened = False
        """A consumer does not know yet whether it is the active one."""
        self._has_granted = False
        self._holds = 0
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._rate_timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Event | None = None

    # --- when -------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Run at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.run)

    def hold(self) -> None:
        """Do nothing until `release`, for each call of this."""
        self._holds += 1

    def release(self) -> None:
        """Go on after `hold`."""
        self._holds -= 1
        self.schedule()

    def room_was_made(self) -> None:
        """Run as well, unless nothing waits for room."""
        has_delayed = self._core.delayed.left_through is not None
        if not self._is_scheduled and (self._demand.is_satisfied or self.has_work or has_delayed):
            self.schedule()

    def consumer_opened(self) -> None:
        """Run as well, and notify the consumer whether it is active."""
        self._has_opened = True
        self.schedule()

    async def wait_run(self, timeout_s: float) -> None:
        """Wait until this has run, or for so long."""
        if self._ended is None:
            self._ended = asyncio.Event()
        waiter = self._loop.create_task(self._ended.wait())
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            waiter.cancel()

    @property
    def has_work(self) -> bool:
        """Whether anything is left to grant, or to feed the core with."""
        core, blocks = self._core, self._core.blocks
        is_left = blocks.waiting_messages or blocks.suspects.waiting
        return bool(is_left) or core.intake.read_position <= self._log.last

    @property
    def is_satisfied(self) -> bool:
        """Whether nobody has had room for new entries lately."""
        return self._demand.is_satisfied

    def tick(self) -> None:
        """Look at the demand; once a second."""
        if self._has_granted:
            self._demand.granted()
            self._has_granted = False
        self._demand.tick(has_room=not self._consumers or self._core.blocks_wanted() > 0)

    # --- what -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do all of it now."""
        self._is_scheduled = False
        if self._holds:
            return
        core, now_ms = self._core, self._clock.monotonic_ms()
        if core.delayed.is_heeded:
            core.delayed.now_ms = self._clock.now_ms()
        if self._has_opened or core.type.policy.must_elect:
            self.elect(now_ms)
        while self._feeder.feed(self._resume) | self.dispatch(now_ms) and self.has_work:
            continue
        if core.type.keyed is not None:
            self._feeder.feed(
                self._resume
            )  # dispatching may have shown that somebody wants more than was read
        if core.returning.awaited and self._deadline_timer is None:
            delay_s = max(0.01, (core.returning.grace_until_ms - now_ms) / 1000)
            self._deadline_timer = self._loop.call_later(delay_s, self._deadline_reached)
        if core.rated is not None:
            self._wait_for_rate(now_ms)
        if self._demand.is_satisfied and self._demand.has_returned(has_room=core.blocks_wanted() > 0):
            self._on_demand()
        if core.delayed.left_through is not None and self.ask_tracker is not None:
            self.ask_tracker()
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    def elect(self, now_ms: int) -> None:
        """Elect the active consumer of a Failover subscription, and notify consumers of changes."""
        core = self._core
        drops = core.elect(now_ms)
        if drops:
            self._consumers.drop_queues(drops)
            self._durability.flush_soon()
        self._has_opened = False
        self._consumers.notify_active(core.type.policy.active, core.generation)

    def dispatch(self, now_ms: int) -> bool:
        """Send all grants that can be made now; True if there were any."""
        grants = self._core.dispatch(now_ms)
        if not grants:
            return False
        self._has_granted = True
        is_for_one = len(grants) == 1 or len(self._core.consumers) == 1
        self._traffic.granted(self._consumers.deliver(grants, self._core.generation, is_for_one))
        return True

    def _wait_for_rate(self, now_ms: int) -> None:
        """Run again as soon as the dispatch rate lets messages go."""
        wait_ms = self._core.throttled_ms(now_ms)
        if wait_ms and self._rate_timer is None and self.has_work:
            self._rate_timer = self._loop.call_later(wait_ms / 1000, self._rate_waited)

    def _rate_waited(self) -> None:
        self._rate_timer = None
        self.run()

    def _deadline_reached(self) -> None:
        self._deadline_timer = None
        self._core.expire(self._clock.monotonic_ms())
        self.run()
