"""Notices a subscription that does not read on, and has it read the files again."""

from __future__ import annotations

from pulsar_ray.broker.subscription.log.core_feeder import CoreFeeder
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.model.message_id import Position

STANDS_MS = 10_000


class ReadingWatch:
    """Looked at once a second; costs a search for the first unacknowledged entry.

    Reading stands still where consumers have room and either nothing is read of what is there, or nothing is
    outstanding while an entry that was read past is not acknowledged. Neither should ever be. A view of the
    log with a hole in it does that, and the files have no hole. Each place is read again once: what is
    damaged stays behind.
    """

    def __init__(self, core: Dispatcher, log: LogView, feeder: CoreFeeder) -> None:
        self._core = core
        self._log = log
        self._feeder = feeder
        self._seen: tuple[Position | None, Position] | None = None
        self._since_ms = 0
        self._read_again_at: Position | None = None
        self.reason = ""
        """Where reading stands still; empty while it does not."""

    def look(self, now_ms: int) -> str:
        """Return what to warn of, if a standstill was noticed just now.

        It is read again then.
        """
        core = self._core
        place = self._standing_at()
        seen = place, core.read_position
        if place is None or seen != self._seen:
            if place is None or place != self._read_again_at:
                self.reason = ""
            self._seen, self._since_ms = seen, now_ms
            return ""
        if now_ms - self._since_ms < STANDS_MS or place == self._read_again_at:
            return ""
        self._read_again_at = place
        self.reason = f"reading stands still at {place.ledger_id}:{place.entry_id}"
        if place < core.read_position:
            core.read_again(place)
        self._feeder.read_again()
        return self.reason

    def _standing_at(self) -> Position | None:
        """The next entry to be read, if it is time for that now."""
        core, feeder = self._core, self._feeder
        if not core.consumers or feeder.is_reading or feeder.problem or core.blocks_wanted() <= 0:
            return None
        return core.read_position if core.read_position <= self._log.last else core.passed_over()
