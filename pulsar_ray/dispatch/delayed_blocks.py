"""Decides which rows of delayed blocks have to wait.

These are left to the tracker, and taken in when they are due.

Each row that is not acknowledged is either among the dispatcher's blocks or left. A left row is above the key
`taken` in the tracker's order, or was published too late for that, and then comes next. If it is handed over
twice, or found in the log as well, it is taken in once. So nothing has to be remembered of what was left: a
seek, or a restart, reads the log again, and finds due by `floor_ms` what a former life had taken.
"""

from __future__ import annotations

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.format.delivery_times import DeliveryTimes
from pulsar_ray.managed_ledger.delayed.delayed_rows import RowKey
from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.numpy_on_demand import np

AT_ONCE = 1 << 62
"""Everything is due by then."""


class DelayedBlocks:
    """Decides by the wall clock, as its owner sets it."""

    def __init__(self, settings: DispatchSettings, *, can_wait: bool, strict: str = "") -> None:
        self._settings = settings
        self._can_wait = can_wait
        self.strict = strict
        """The subscription's own switch, "true" or "false"; "" has the topic's policy decide."""
        self.is_heeded = False
        """Whether delays count: on a durable subscription of type Shared or Key_Shared."""
        self.now_ms = 0
        self.floor_ms = -AT_ONCE
        """Everything that is due by then is found in the log."""
        self.taken = RowKey(-AT_ONCE)
        """The tracker has handed over everything up to this key."""
        self.left_through: Position | None = None
        """The last entry of which a row was left since reading began; None without one."""
        self.left_entries = 0
        """How many entries were left since reading began, those that have become due since included."""
        self.has_met = False
        """Whether blocks were read that may be delayed."""
        self.anew = 0
        """How often `taken` went back, which makes the index anew."""
        self._was_enabled = settings.delayed_delivery_enabled

    def begin(self, now_ms: int, dropped: RowKey) -> None:
        """Begin a life: the log is read from the mark-delete position.

        It has all that is due by now, and all that an index has dropped.
        """
        self.now_ms = now_ms
        self.floor_ms = max(now_ms, dropped.deliver_at)
        self.taken = RowKey(self.floor_ms)

    def settings_changed(self) -> None:
        """Count only what is due as handed over, once delays are on again.

        While they are off all that waits is handed over, and `taken` is as far ahead as the latest of it.
        """
        were_enabled, self._was_enabled = self._was_enabled, self._settings.delayed_delivery_enabled
        if self._was_enabled and not were_enabled:
            self.anew += 1
            self.floor_ms = self.now_ms
            self.taken = RowKey(self.floor_ms)

    def become(self, *, heeds_delays: bool) -> bool:
        """Heed delays, or not; True if blocks have to be read again for it."""
        before, self.is_heeded = self.is_heeded, heeds_delays and self._can_wait
        return self.is_heeded != before and self.has_met

    def begin_again(self) -> None:
        """The log is read again from the mark-delete position."""
        self.floor_ms = max(self.floor_ms, self.taken.deliver_at, self.now_ms)
        self.taken = max(self.taken, RowKey(self.floor_ms))
        self.left_through = None
        self.left_entries = 0
        self.has_met = False

    @property
    def is_strict(self) -> bool:
        """Whether nothing is ever delivered early."""
        return self.strict == "true" if self.strict else self._settings.delayed_delivery_is_strict

    @property
    def due_by_ms(self) -> int:
        """Rows whose time is not later are due."""
        settings = self._settings
        if not settings.delayed_delivery_enabled:
            return AT_ONCE
        return self.now_ms if self.is_strict else self.now_ms + settings.delayed_delivery_tick_ms

    def due_rows(self, ref: BlockRef, times: DeliveryTimes) -> RowSet:
        """The rows of a block that do not have to wait."""
        by_ms = max(self.due_by_ms, self.floor_ms)
        if isinstance(times, int):
            return ref.all_rows if times <= by_ms else 0
        if max(times) <= by_ms:
            return ref.all_rows
        if not ref.row_is_entry:
            return 0
        return row_sets.of_flags(np.frombuffer(times, np.int64) <= by_ms)

    def left(self, ref: BlockRef, rows: RowSet) -> None:
        """Note that these rows of a block are left."""
        self.left_entries += rows.bit_count() if ref.row_is_entry else 1
        self.left_through = Position(ref.ledger_id, ref.last_entry_id)
