"""Holds a topic's backlog to its policy `backlog_quota` (ADR 0050)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.clock import Clock
from pulsar_ray.errors import (
    BrokerPersistenceError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    PulsarException,
)
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.store.wake_times import look_again_ms
from pulsar_ray.model.message_id import Position

UNLIMITED = 1 << 62
EVICTION = "consumer_backlog_eviction"
EXCEPTION = "producer_exception"
_KEPT_TENTHS = 9
"""An eviction leaves so many tenths of the limit, as Pulsar's does.

Otherwise every message would evict one.
"""
_WATCH_S = 0.1


class Backlog(NamedTuple):
    """The largest backlog of a durable subscription when it was measured last.

    `oldest_ms` is when its oldest message was stored; None if there is no backlog. `appended` and
    `lowered` are what the log and its holds counted then.
    """

    subscription: str
    hold: Position
    size_bytes: int
    oldest_ms: int | None
    measured_ms: int
    appended: int
    lowered: int


class BacklogQuota:
    """Knows how much may be stored before the slowest subscription's backlog is at its limit.

    Messages only add to what was measured, and a hold that moves forwards only takes from it: so the
    log is read again only where the sum is at the limit, and a hold has moved. Everything is on the owner
    loop; files are read on other threads. `settle_holds` takes in what dispatchers have
    reported, and `changed` is called with the reason not to store, or None. While `may_act` says no, as
    policies are not known for certain, there is no limit.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        policies: PartitionPolicies,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        settle_holds: Callable[[], Awaitable[None]],
        expire_before: Callable[[Position], Awaitable[None]],
        changed: Callable[[PulsarException | None], None],
        may_act: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._policies = policies
        self._clock = clock
        self._loop = loop
        self._spawn = spawn
        self._settle_holds = settle_holds
        self._expire_before = expire_before
        self._changed = changed
        self._may_act = may_act
        self._limits = self._limits_now()
        self.is_on = self._is_on_now()
        """Whether the topic has a quota."""
        self._running = asyncio.Lock()
        self._watch: asyncio.TimerHandle | None = None
        self._measured: Backlog | None = None
        self._holds_seen = -1
        """The holds' count when the refusal was decided."""
        self.refusal: PulsarException | None = None
        """Why nothing is stored just now: the backlog is at its limit."""

    def _limits_now(self) -> tuple[int, int, str]:
        policies = self._policies
        return policies.backlog_limit_bytes, policies.backlog_limit_ms, policies.backlog_policy

    def _is_on_now(self) -> bool:
        return self._policies.backlog_limit_bytes >= 0 or self._policies.backlog_limit_ms >= 0

    def room_bytes(self) -> int:
        """Return how many bytes may be stored before the backlog is to be measured.

        0: measure it first. Costs a few comparisons.
        """
        limit_bytes, limit_ms = self._policies.backlog_limit_bytes, self._policies.backlog_limit_ms
        if not self.is_on or not self._may_act():
            return UNLIMITED
        measured = self._measured
        is_known = measured is not None and measured.lowered == self._ledger.changes.holds_lowered
        if self.refusal is not None or measured is None or not is_known:
            return 0
        if limit_ms >= 0 and self._clock.now_ms() > _since_ms(measured) + limit_ms:
            return 0
        if limit_bytes < 0:
            return UNLIMITED
        used = measured.size_bytes + self._ledger.appended_bytes - measured.appended
        # One message may always be stored where there is no backlog: it would never find more room.
        return max(limit_bytes - used, 0 if used else 1)

    def decide(self, answer: Callable[[PulsarException | None], None]) -> None:
        """Answer, perhaps later, with the reason not to store; None: there is room."""
        if self.refusal is not None:
            answer(self.refusal)
        else:
            self._spawn(self._decide(answer))

    async def _decide(self, answer: Callable[[PulsarException | None], None]) -> None:
        try:
            await self.look()
        except BrokerPersistenceError as error:
            answer(error)
        else:
            answer(self.refusal)

    def is_due(self) -> bool:
        """Whether the backlog is to be looked at, whether anybody publishes or not."""
        if not self.is_on or self._running.locked() or not self._may_act():
            return False
        if self.refusal is None:
            return self.room_bytes() <= 0
        return self._holds_seen != self._ledger.changes.holds_changed

    async def look(self) -> None:
        """Measure the backlog and do what the policy says.

        Raises BrokerPersistenceError if the disk refuses an eviction.
        """
        if not self.is_on or not self._may_act():
            self._set(None)
            return
        async with self._running:
            self._holds_seen = self._ledger.changes.holds_changed
            backlog = await self.measure()
            reason = self._excess(backlog)
            if reason:
                await self._settle_holds()
                backlog = await self.measure()
                reason = self._excess(backlog)
            if reason and self._policies.backlog_policy == EVICTION:
                await self._evict(backlog)
                await self.measure()
                reason = ""
            self._set(self._refusal_for(reason) if reason else None)

    def settings_changed(self) -> None:
        """Look again if the quota is another one."""
        limits = self._limits_now()
        if limits != self._limits:
            self._limits = limits
            self.is_on = self._is_on_now()
            self._set(None)

    async def measure(self) -> Backlog:
        """Measure the largest backlog now."""
        ledger, changes = self._ledger, self._ledger.changes
        slowest = min(
            (s for s in changes.subscriptions() if s.is_durable and s.hold < ledger.readable_position),
            key=lambda subscription: subscription.hold,
            default=None,
        )
        before, now_ms, appended = self._measured, self._clock.now_ms(), ledger.appended_bytes
        counted = (appended, changes.holds_lowered)
        if slowest is None:
            measured = Backlog("", ledger.readable_position, 0, None, now_ms, *counted)
        elif before is not None and before.oldest_ms is not None and before.hold == slowest.hold:
            size = before.size_bytes + appended - before.appended
            measured = Backlog(slowest.name, slowest.hold, size, before.oldest_ms, now_ms, *counted)
        else:
            search = ledger.begin_backlog(slowest.hold.next())
            front = await self._loop.run_in_executor(None, search.run)
            measured = Backlog(
                slowest.name, slowest.hold, front.size_bytes, front.stored_ms, now_ms, *counted
            )
        self._measured = measured
        return measured

    async def next_due_ms(self) -> int | None:
        """Return when a partition that sleeps is to evict; None: never.

        That is a while after the oldest message reaches the limit: one start then serves several of them.
        """
        limit_ms = self._policies.backlog_limit_ms
        if limit_ms < 0 or self._policies.backlog_policy != EVICTION:
            return None
        oldest_ms = (await self.measure()).oldest_ms
        return None if oldest_ms is None else look_again_ms(oldest_ms, limit_ms)

    async def describe(self) -> dict[str, Any]:
        """Describe the quota and the largest backlog, in Pulsar's names where it has one."""
        measured = await self.measure()
        policies = self._policies
        age_ms = -1000 if measured.oldest_ms is None else measured.measured_ms - measured.oldest_ms
        return {
            "backlogQuotaLimitSize": policies.backlog_limit_bytes,
            "backlogQuotaLimitTime": policies.backlog_limit_ms // 1000,
            "backlogQuotaPolicy": policies.backlog_policy,
            "backlogQuotaExceeded": "" if self.refusal is None else self.refusal.text,
            "oldestBacklogMessageAgeSeconds": age_ms // 1000,
            "oldestBacklogMessageSubscriptionName": measured.subscription,
            "slowestSubscriptionBacklogSize": measured.size_bytes,
        }

    # ---- at the limit

    def _excess(self, backlog: Backlog) -> str:
        """Describe what is at the limit; "" for nothing."""
        limit_bytes, limit_ms = self._policies.backlog_limit_bytes, self._policies.backlog_limit_ms
        if backlog.oldest_ms is None:
            return ""
        topic = self._ledger.identity.topic
        owner = f"the backlog of subscription {backlog.subscription!r} on {topic}"
        if 0 <= limit_bytes <= backlog.size_bytes:
            return f"{owner} is {backlog.size_bytes} bytes, and its limit_size is {limit_bytes}"
        age_ms = backlog.measured_ms - backlog.oldest_ms
        if 0 <= limit_ms < age_ms:
            return (
                f"{owner} is {backlog.size_bytes} bytes and {age_ms / 1000:.1f} seconds old, and its "
                f"limit_time is {limit_ms // 1000} seconds"
            )
        return ""

    def _refusal_for(self, reason: str) -> PulsarException:
        remedy = "consume or skip messages, delete the subscription, or raise the quota"
        text = f"{reason} (policy backlog_quota): {remedy}"
        if self._policies.backlog_policy == EXCEPTION:
            return ProducerBlockedQuotaExceededException(text)
        return ProducerBlockedQuotaExceededError(text)

    async def _evict(self, backlog: Backlog) -> None:
        """Acknowledge the oldest messages for all that have them in their backlogs."""
        limit_bytes, limit_ms = self._policies.backlog_limit_bytes, self._policies.backlog_limit_ms
        stored_before_ms, more_than_bytes = 0, None
        if limit_ms >= 0:
            kept_ms = limit_ms
            if backlog.oldest_ms is not None and backlog.measured_ms - backlog.oldest_ms > limit_ms:
                kept_ms = limit_ms * _KEPT_TENTHS // 10
            stored_before_ms = self._clock.now_ms() - kept_ms
        if 0 <= limit_bytes <= backlog.size_bytes:
            more_than_bytes = limit_bytes * _KEPT_TENTHS // 10
        search = self._ledger.begin_backlog(backlog.hold.next())
        front = await self._loop.run_in_executor(None, search.run, stored_before_ms, more_than_bytes)
        await self._expire_before(front.position)

    def _set(self, refusal: PulsarException | None) -> None:
        if refusal is None and self.refusal is None:
            return
        self.refusal = refusal
        self._changed(refusal)
        if self._watch is None and refusal is not None:
            self._watch = self._loop.call_later(_WATCH_S, self._look_for_moves)

    def _look_for_moves(self) -> None:
        """Let producers go on soon after the backlog has shrunk."""
        self._watch = None
        if self.refusal is None:
            return
        if self.is_due():
            self.decide_again()
        self._watch = self._loop.call_later(_WATCH_S, self._look_for_moves)

    def decide_again(self) -> None:
        """Look again, and do what is to be done, in a task of its own."""
        self._spawn(self._look_again())

    async def _look_again(self) -> None:
        try:
            await self.look()
        except BrokerPersistenceError:
            pass  # the next look asks the disk again


def _since_ms(measured: Backlog) -> int:
    """Return when the oldest message was stored; one may have come right behind the measurement."""
    return measured.measured_ms if measured.oldest_ms is None else measured.oldest_ms
