"""Subscriptions, leases and trimming: every change of the manifest that is not an append.

Touches no disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from pulsar_ray.errors import SubscriptionNotFound
from pulsar_ray.managed_ledger.log.commit import LogFiles, ManifestChange, OpenLedger
from pulsar_ray.managed_ledger.log.ledger_policies import (
    LedgerPolicies,
    Retention,
    ledgers_to_trim,
    next_trim_ms,
)
from pulsar_ray.managed_ledger.log.log_state import LogState
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Compacted,
    DeduplicationSwitched,
    Expired,
    HoldMoved,
    Lease,
    LeaseEnded,
    LedgersDeleted,
    ManifestRecord,
    SequenceIdsForgotten,
    Subscription,
    SubscriptionProperties,
    SubscriptionRemoved,
    Terminated,
    TopicEpoch,
    Unused,
)
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.registrations import kept_bytes

_IDLE_MS = 60_000
_OF_HOLDS = (Subscription, HoldMoved, Expired, SubscriptionRemoved)


class ManifestChanges:
    """Begins, finishes and fails changes; several may be under way."""

    def __init__(self, state: LogState, files: LogFiles, policies: LedgerPolicies) -> None:
        self._state = state
        self._files = files
        self._policies = policies
        self.holds_changed = 0
        """Rises whenever a hold has moved, come or gone."""
        self.holds_lowered = 0
        """Rises whenever a hold has moved back, or come."""
        self.needed_behind: Callable[[], list[Position]] = list
        """Returns the positions behind which readers of a compacted log need it (ADR 0136)."""
        self.is_compacting = False
        """Whether a compaction reads the log: what it has not compacted yet stays."""
        self.has_begun = False
        """Whether the owner has written a manifest of its own."""

    def begin_log(self) -> ManifestChange | None:
        """Begin the owner's manifest, with which the files of deleted ledgers go.

        Until that is done the manifest of the owner before holds. None: it is, or an append is under way.
        """
        if self.has_begun or self._state.in_flight is not None:
            return None
        beginning = self._begin((), deleted=list(self._state.manifest.deleted))
        beginning.snapshot = self._state.snapshot()
        beginning.begins_log = True
        return beginning

    def finish(self, change: ManifestChange) -> Any:
        """The change's run returned: it is durable; returns its result."""
        state = self._state
        state.unfinished.remove(change)
        self.has_begun = self.has_begun or change.begins_log
        for record in change.records:
            if isinstance(record, DeduplicationSwitched):
                state.sequences.switch(on=record.is_on)
            if isinstance(record, _OF_HOLDS):
                self._apply_to_hold(record)
            else:
                state.manifest.apply(record)
                if isinstance(record, Compacted):
                    state.segments_changed()
        if change.deleted:
            state.manifest.deleted -= change.deleted
            state.forget_points()
            state.segments_changed()
        return change.result

    def _apply_to_hold(self, record: Subscription | HoldMoved | Expired | SubscriptionRemoved) -> None:
        before = self.subscription(record.number)
        self._state.manifest.apply(record)
        after = self.subscription(record.number)
        self.holds_changed += 1
        self.holds_lowered += after is not None and (before is None or after.hold < before.hold)

    def fail(self, change: ManifestChange) -> None:
        """The change's run raised: whether it is in effect after a restart is unknown."""
        self._state.unfinished.remove(change)
        if change.deleted:
            self._state.look_for_first()
        self._state.ended[:0] = change.ends
        if any(isinstance(record, DeduplicationSwitched) and record.is_on for record in change.records):
            self._state.sequences.switch(on=False)

    # ---- subscriptions and leases

    def subscriptions(self) -> list[Subscription]:
        return list(self._state.manifest.subscriptions.values())

    def durable_subscriptions(self) -> list[Subscription]:
        return [s for s in self.subscriptions() if s.is_durable]

    def count_subscriptions(self, besides: str) -> int:
        """Count durable subscriptions, also those being registered, but for the one of a name."""
        return len({s.name for s in self._known() if s.is_durable} - {besides})

    def kept_bytes(self, besides: str) -> list[int]:
        """The bytes of each subscription's name and properties, but for one of a name."""
        return [kept_bytes(s.name, s.properties) for s in self._known() if s.name != besides]

    def _known(self) -> list[Subscription]:
        """All subscriptions, also those being registered."""
        pending = (change.result for change in self._state.unfinished)
        return [*self.subscriptions(), *(s for s in pending if isinstance(s, Subscription))]

    def has_subscription(self, number: int) -> bool:
        return number in self._state.manifest.subscriptions

    def subscription(self, number: int) -> Subscription | None:
        """Return the subscription with this number."""
        return self._state.manifest.subscriptions.get(number)

    def find_subscription(self, name: str, is_durable: bool) -> Subscription | None:
        for subscription in self._state.manifest.subscriptions.values():
            if subscription.name == name and subscription.is_durable == is_durable:
                return subscription
        return None

    @property
    def next_subscription_number(self) -> int:
        """No subscription has had it, nor a higher one."""
        return self._state.manifest.next_subscription

    def register(
        self, name: str, is_durable: bool, initial: str | Position, properties: dict[str, str] | None = None
    ) -> ManifestChange:
        """Register a subscription with its hold.

        The result is the Subscription; one that exists is returned as it is.

        `initial` is "earliest", "latest" (the readable end now: what is shown later is seen), or a
        mark-delete position, which is clamped to what is there.
        """
        existing = self.find_subscription(name, is_durable)
        if existing is not None:
            return self._begin((), existing)
        for change in self._state.unfinished:
            pending = change.result
            if isinstance(pending, Subscription) and (pending.name, pending.is_durable) == (name, is_durable):
                return self._begin(change.records, pending, change.hold)
        state = self._state
        if initial == "latest":
            hold = state.readable.position
        elif initial == "earliest":
            hold = self._before_all()
        else:
            assert isinstance(initial, Position)
            hold = self.clamp(initial)
        number = state.manifest.next_subscription
        state.manifest.next_subscription += 1
        subscription = Subscription(number, name, is_durable, *hold, dict(properties or {}))
        return self._begin([subscription], subscription, hold if is_durable else None)

    def move_hold(self, number: int, position: Position) -> ManifestChange:
        """Move a hold forwards, or back for a seek.

        The result is the mark-delete position that is valid.

        Raises SubscriptionNotFound.
        """
        known = self._state.manifest.subscriptions.get(number)
        if known is None:
            topic = self._state.manifest.identity.topic
            raise SubscriptionNotFound(f"{topic} has no subscription number {number}")
        hold = self.clamp(position)
        goes_back = hold < known.reported
        # A late report holds nothing that the broker acknowledges meanwhile.
        respected = hold if goes_back else max(hold, self._expired(number))
        return self._begin([HoldMoved(number, *hold)], hold, respected)

    def seek(self, number: int, position: Position) -> ManifestChange:
        """As `move_hold`; the broker then has acknowledged nothing behind that position."""
        change = self.move_hold(number, position)
        change.hold = change.result
        expired = self._expired(number)
        if expired > change.result:
            change.records.append(Expired(number, *change.result))
        return change

    def expire(self, numbers: Iterable[int], position: Position) -> ManifestChange | None:
        """Acknowledge up to a position for those durable subscriptions that have not come so far.

        The result is the list of their numbers. None: all have. It is durable and final with the change: a
        dispatcher takes it over whenever it starts, and only a seek takes it back.
        """
        end = self.clamp(position)
        records = [
            Expired(number, *end)
            for number in numbers
            if (known := self.subscription(number)) is not None
            and known.is_durable
            and max(known.hold, self._expired(number)) < end
        ]
        return self._begin(records, [record.number for record in records]) if records else None

    def _expired(self, number: int) -> Position:
        """The position up to which the broker acknowledges, once the changes under way are durable."""
        known = self.subscription(number)
        expired = EARLIEST if known is None else known.expired
        for change in self._state.unfinished:
            for record in change.records:
                if isinstance(record, Expired) and record.number == number:
                    expired = record.position
        return expired

    def set_properties(self, number: int, properties: dict[str, str]) -> ManifestChange:
        """Replace the properties of a subscription."""
        return self._begin([SubscriptionProperties(number, properties)])

    def remove_subscription(self, number: int) -> ManifestChange:
        """Forget a subscription and its hold."""
        return self.remove_subscriptions([number])

    def remove_subscriptions(self, numbers: Iterable[int]) -> ManifestChange:
        """Forget subscriptions and their holds."""
        return self._begin([SubscriptionRemoved(number) for number in numbers])

    def note_unused(self, since_ms: Mapping[int, int]) -> ManifestChange:
        """Note, by their numbers, since when nobody has used subscriptions; 0: somebody does.

        WHOLE_TOPIC stands for the topic.
        """
        return self._begin([Unused(number, since) for number, since in since_ms.items()])

    @property
    def unused_since_ms(self) -> int:
        """Since when nobody has used the topic; 0 if somebody does, or nobody counts."""
        return self._state.manifest.unused_since_ms

    def leases(self) -> list[Lease]:
        return list(self._state.manifest.leases.values())

    def grant_lease(
        self, first: Position, last: Position, expires_ms: int, lease_id: int | None = None
    ) -> ManifestChange:
        """Keep the ledgers of a range until a time; the result is the lease's id.

        Its id again renews it.
        """
        manifest = self._state.manifest
        if lease_id is None:
            lease_id = manifest.next_lease
            manifest.next_lease += 1
        lease = Lease(lease_id, first.ledger_id, last.ledger_id, expires_ms)
        return self._begin([lease], lease_id, mark_delete_before(Position(first.ledger_id, 0)))

    def release_lease(self, lease_id: int) -> ManifestChange:
        """Give a lease back before it expires."""
        return self._begin([LeaseEnded(lease_id)])

    def entry_before(self, position: Position) -> Position:
        """The last entry before a position, also if that stands in an earlier ledger."""
        if position.entry_id > 0:
            return Position(position.ledger_id, position.entry_id - 1)
        before = mark_delete_before(position)
        for ledger in self._state.manifest.ledgers.values():
            if ledger.ledger_id < position.ledger_id and ledger.last_entry_id >= 0:
                before = ledger.last_position
        return before

    def clamp(self, mark_delete: Position) -> Position:
        """The nearest valid mark-delete position.

        It lies between right before the first entry and the last readable one.
        """
        lowest = self._before_all()
        return min(max(mark_delete, lowest), self._state.readable.position)

    def _before_all(self) -> Position:
        """The mark-delete position before all there is, what compaction has kept included."""
        first, compacted = self._state.first_position, self.compacted
        kept = None if compacted is None else compacted.first
        return mark_delete_before(first if kept is None else min(first, kept))

    # ---- compaction

    @property
    def compacted(self) -> Compacted | None:
        """The compacted form of the log, as it is durable; None if there is none."""
        return self._state.manifest.compacted

    def take_compacted(self, compacted: Compacted) -> ManifestChange:
        """Let a compacted form, whose files are durable, take the place of the one before."""
        return self._begin([compacted])

    def drop_compacted(self) -> ManifestChange | None:
        """Forget what compaction has kept; None: there is nothing."""
        if self.compacted is None:
            return None
        return self._begin([Compacted(0, -1, -1, (), (-1, -1, -1, 0), 0, 0, 0, 0)])

    def _compaction_hold(self) -> list[Position]:
        """The horizon of a log that is compacted: the rest was not compacted yet.

        Or, if that is less, how far readers are.
        """
        if self.compacted is not None:
            return [self.compacted.horizon, *self.needed_behind()]
        return [EARLIEST] if self.is_compacting or self._policies.is_compacted else []

    # ---- deduplication

    def switch_deduplication(self, *, on: bool) -> ManifestChange | None:
        """Remember from now on which sequence ids are stored, or forget them.

        None: it is so already.
        """
        state = self._state
        pending = any(
            isinstance(record, DeduplicationSwitched)
            for change in state.unfinished
            for record in change.records
        )
        if state.sequences.is_on == on or pending:
            return None
        if on:
            state.sequences.switch(on=True)
        return self._begin([DeduplicationSwitched(on, *state.last_position)])

    def forget_producers(self, prefix: str) -> ManifestChange:
        """Make deduplication forget the producers whose names begin so; the result is their names."""
        forgotten = self._state.sequences.forget(prefix)
        return self._begin([SequenceIdsForgotten(prefix, *self._state.last_position)], forgotten)

    # ---- producers that have the topic for themselves

    @property
    def topic_epoch(self) -> TopicEpoch:
        """The topic's epoch as it is durable."""
        return self._state.manifest.topic_epoch

    def set_topic_epoch(self, epoch: int, *, held: bool) -> ManifestChange:
        """Note that one producer has the topic for itself, or has it no more."""
        return self._begin([TopicEpoch(epoch, held)])

    # ---- the end of the topic

    @property
    def terminated(self) -> Position | None:
        """The last entry of a topic that takes no more; None while it does."""
        return self._state.manifest.terminated

    def terminate(self) -> ManifestChange:
        """Let the topic end with its last entry; no append is under way."""
        return self._begin([Terminated(*self._state.last_position)])

    # ---- trimming

    def trim(
        self,
        now_ms: int,
        retention: Retention | None = None,
        *,
        is_leaving: bool = False,
        is_truncating: bool = False,
    ) -> ManifestChange | None:
        """Delete ledgers at the front that nobody needs; the result is their ids.

        None: nothing to do.

        It also ends expired leases, and an idle open ledger that everybody has consumed, so that a later trim
        can take it. An owner that is leaving ends a consumed ledger whatever its age, and takes it at once.
        """
        state = self._state
        manifest = state.manifest
        holds = self._holds()
        if is_truncating:
            holds = self._subscribed_holds()
        if is_leaving and holds and state.in_flight is None and min(holds) >= state.last_position:
            self.end_log()
        current = state.open_ledger
        records: list[ManifestRecord] = [
            LeaseEnded(lease.lease_id) for lease in manifest.leases.values() if lease.expires_ms <= now_ms
        ]
        leaving = state.leaving()
        closed = [
            ledger
            for ledger in manifest.ledgers.values()
            if ledger.closed_ms and ledger.ledger_id not in leaving
        ]

        def may_go(ledger: LedgerInfo) -> bool:
            return is_truncating or self._may_go(ledger, holds, now_ms, is_leaving=is_leaving)

        old = [*takewhile(may_go, closed)]
        younger_bytes = sum(ledger.size_bytes for ledger in closed[len(old) :])
        going = ledgers_to_trim(
            old,
            younger_bytes + (0 if current is None else current.size_bytes),
            holds,
            manifest.leases.values(),
            retention or self._policies.retention,
            now_ms,
        )
        ids = [ledger.ledger_id for ledger in going]
        if ids:
            # The blocks that go were the only ones to tell these sequence ids.
            records += state.sequences.unsaved()
            records.append(LedgersDeleted(ids))
        if is_leaving:
            records += state.incarnations.idle_times()
        ends: list[ManifestRecord] = []
        if state.in_flight is None:
            if current is not None and self._is_idle(current, holds, now_ms):
                state.end_open_ledger(now_ms)
            ends, state.ended = state.ended, []
        if not (ends or records):
            return None
        trim = self._begin([*ends, *records], ids, deleted=ids)
        trim.ends = ends
        return trim

    def truncate(self, now_ms: int) -> ManifestChange | None:
        """As `trim`, as if nothing were kept beyond what is not consumed."""
        return self.trim(now_ms, Retention(0, 0), is_truncating=True)

    def _holds(self) -> list[Position]:
        """The holds of all durable subscriptions, those on their way included, and of compaction."""
        return self._subscribed_holds() + self._compaction_hold()

    def _subscribed_holds(self) -> list[Position]:
        holds = [s.hold for s in self._state.manifest.subscriptions.values() if s.is_durable]
        return holds + [change.hold for change in self._state.unfinished if change.hold is not None]

    def end_log(self) -> None:
        """End the open ledger for an owner that leaves; no append is under way."""
        current = self._state.open_ledger
        if current is not None:
            self._state.end_open_ledger(current.last_append_ms)

    def end_log_soon(self) -> int | None:
        """End the open ledger, behind an append that is under way; returns its id."""
        state = self._state
        current = state.open_ledger
        if current is None:
            return None
        if state.in_flight is None:
            self.end_log()
        else:
            state.ends_next = True
        return current.ledger_id

    def has_ended(self, ledger_id: int | None) -> bool:
        """Whether nothing more is added to that ledger; it is ended if it can be."""
        current = self._state.open_ledger
        if current is None or current.ledger_id != ledger_id:
            return True
        if self._state.in_flight is None:
            self.end_log()
            return True
        return False

    def next_trim_ms(self) -> int | None:
        """Return when an ended log will have something to trim; None: never."""
        ledgers = list(self._state.manifest.ledgers.values())
        holds = self._holds()
        leases = self._state.manifest.leases.values()
        due_ms = next_trim_ms(ledgers, holds, leases, self._policies.retention)
        if due_ms is None or holds:
            return due_ms
        return max(due_ms, ledgers[0].opened_ms + self._policies.rollover.min_ms, self._new_until_ms())

    def _may_go(self, ledger: LedgerInfo, holds: list[Position], now_ms: int, *, is_leaving: bool) -> bool:
        """Whether a closed ledger is old enough to be deleted.

        A log that nobody has subscribed to keeps its last messages for the least age of a full ledger, also
        if an owner that left ended the ledger early: somebody may just be about to subscribe. For the same
        reason a new log keeps all it has; not where all who know it have consumed it and nobody uses it.
        """
        if holds and is_leaving:
            return True
        new_until_ms = self._new_until_ms()
        if new_until_ms - self._policies.new_topic_ms <= now_ms < new_until_ms:
            return False
        return bool(holds) or not 0 <= now_ms - ledger.opened_ms < self._policies.rollover.min_ms

    def _new_until_ms(self) -> int:
        """Return until when the log keeps its first messages.

        That is for those who look for new topics (ADR 0102); 0 once some of them are gone.
        """
        manifest = self._state.manifest
        if manifest.trimmed != EARLIEST or not manifest.ledgers:
            return 0
        return next(iter(manifest.ledgers.values())).opened_ms + self._policies.new_topic_ms

    def _is_idle(self, current: OpenLedger, holds: list[Position], now_ms: int) -> bool:
        return (
            now_ms - current.opened_ms >= self._policies.rollover.min_ms
            and now_ms - current.last_append_ms >= _IDLE_MS
            and all(hold >= self._state.last_position for hold in holds)
        )

    def _begin(
        self,
        records: Sequence[ManifestRecord],
        result: Any = None,
        hold: Position | None = None,
        deleted: Sequence[int] = (),
    ) -> ManifestChange:
        """Begin a change that writes these records.

        A log that broke or became long is rewritten with them.
        """
        change = ManifestChange(self._files, records, result, hold=hold, deleted=deleted)
        if records and self._state.has_to_rewrite(self._files.log):
            change.snapshot = self._state.snapshot()
        self._state.unfinished.append(change)
        if deleted:
            self._state.look_for_first()
        return change


def mark_delete_before(position: Position) -> Position:
    """The mark-delete position right before an entry."""
    return Position(position.ledger_id, max(position.entry_id - 1, -1))
