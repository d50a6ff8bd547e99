"""How much received data one actor holds, and which lanes may go on reading."""

from __future__ import annotations

from typing import Protocol


class ReadableLane(Protocol):
    """A lane whose reading the budget turns on and off."""

    def allow_reading(self, allowed: bool) -> None:
        """Read, or leave the bytes in the socket until reading is allowed again."""


class ReceiveBudget:
    """Bounds bytes in flight by not reading, never by dropping.

    Two kinds count: *retained* bytes, which the owner keeps until a commit, and *buffered* ones of large
    packets that are still incomplete. Retained bytes are released by progress elsewhere, so lanes simply wait
    for it. Buffered ones only go away by reading on: when they alone exceed the limit, the lane that began
    first goes on, or all would wait for each other. Lanes with small packets are not held up by others' large
    ones.
    """

    def __init__(self, limit_bytes: int, lane_limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lane_limit = lane_limit_bytes
        self._retained: dict[ReadableLane, int] = {}
        self._buffered: dict[ReadableLane, int] = {}
        self._paused: dict[ReadableLane, None] = {}
        self.retained_bytes = 0
        self.buffered_bytes = 0

    def retain(self, lane: ReadableLane, count: int) -> None:
        """The owner keeps `count` bytes that came over this lane."""
        retained = self._retained[lane] = self._retained.get(lane, 0) + count
        self.retained_bytes += count
        if retained > self._lane_limit or self.retained_bytes + self.buffered_bytes > self._limit:
            self._apply(lane)

    def release(self, lane: ReadableLane, count: int) -> None:
        """The owner let go of `count` retained bytes; harmless for a lane that was forgotten."""
        retained = self._retained.get(lane, 0)
        if retained == 0:
            return
        if count >= retained:
            count = retained
            del self._retained[lane]
        else:
            self._retained[lane] = retained - count
        self.retained_bytes -= count
        if self._paused:
            self._resume()

    def set_buffered(self, lane: ReadableLane, count: int) -> None:
        """The lane's incomplete large packet takes `count` bytes now, 0 when it has none."""
        before = self._buffered.get(lane, 0)
        if count == before:
            return
        self.buffered_bytes += count - before
        if count:
            self._buffered[lane] = count
        else:
            del self._buffered[lane]
            self._resume()
        self._apply(lane)

    def forget(self, lane: ReadableLane) -> None:
        """The lane is gone and its incomplete packet with it;

        what the owner retains counts until released.
        """
        self.buffered_bytes -= self._buffered.pop(lane, 0)
        self._paused.pop(lane, None)
        self._resume()

    def may_read(self, lane: ReadableLane) -> bool:
        """Whether this lane may read on as things stand."""
        if self.retained_bytes > self._limit or self._retained.get(lane, 0) > self._lane_limit:
            return False
        if lane not in self._buffered or self.retained_bytes + self.buffered_bytes <= self._limit:
            return True
        return next(iter(self._buffered)) is lane

    def _apply(self, lane: ReadableLane) -> None:
        if not self.may_read(lane) and lane not in self._paused:
            self._paused[lane] = None
            lane.allow_reading(False)

    def _resume(self) -> None:
        for lane in list(self._paused):
            if self.may_read(lane):
                del self._paused[lane]
                lane.allow_reading(True)
