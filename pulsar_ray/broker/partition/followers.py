"""The dispatchers that follow a partition, and the packets that they are sent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Any

from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.managed_ledger import AppendResult, ManagedLedger
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from pulsar_ray.session.packet_encoders import PacketEncoder
from pulsar_ray.session.requests import Advanced, Expired, Follow, encode_request
from pulsar_ray.session.session_table import Session

MAX_UNSENT_BYTES = 256 * 1024
_PAUSE_CPU_S = 0.0016
"""The processor time that a packet to one follower takes, in all processes, twice over."""
PAUSE_S = max(0.00025, _PAUSE_CPU_S / len(os.sched_getaffinity(0)))
"""The pause after a round of packets, for each armed follower but one.

Never less, however many processors there seem to be: the group's quota may be lower.
"""
MAX_PAUSE_S = 0.020
MAX_HELD_BYTES = 64 * 1024
RETURN_S = 600.0
"""Readers whose dispatcher has ended have the log kept so long."""

Frames = Sequence[tuple[int, int, int, bytes]]
SegmentRow = tuple[int, int, str, int, int, int]


class _Follower:
    __slots__ = ("armed", "attachment", "behind", "needed_behind", "segments_version", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.attachment = session.attachment
        self.armed = False
        self.behind = False
        self.needed_behind = LATEST
        self.segments_version = -1


class Followers:
    """Sends one small packet to each armed follower after a commit's receipts.

    Positions are absolute, so that a loss harms nothing.

    Each packet wakes a process, and that one a consumer. So several followers are sent commits that come
    one right after the other together, the less often the more followers and the fewer processors there are:
    publishing must not slow down with the number of subscriptions. A commit after a while is sent at once.
    """

    def __init__(self, ledger: ManagedLedger, loop: asyncio.AbstractEventLoop) -> None:
        self._ledger = ledger
        self._log = ledger.state
        self._loop = loop
        self._followers: dict[int, _Follower] = {}
        self._encoder = PacketEncoder(Advanced)
        self._held: list[tuple[int, int, int, bytes]] = []
        self._held_bytes = 0
        self._last = self._log.readable.position
        self._before_held = self._last
        """The last entry before the frames that are held."""
        self._timer: asyncio.TimerHandle | None = None
        self._pause_until = 0.0
        self._left_behind: list[tuple[float, Position]] = []
        """Until when the log behind a position is kept for readers."""

    def __len__(self) -> int:
        return len(self._followers)

    @property
    def numbers(self) -> set[int]:
        """The numbers dispatchers follow by: their subscription's, or one of their own without one."""
        return set(self._followers)

    def need(self, number: int, position: Position) -> None:
        """Keep what is stored behind a position for readers of a compacted topic.

        They follow by this number. A while after their follower's end it ends too.
        """
        if (follower := self._followers.get(number)) is not None:
            follower.needed_behind = position

    def needed_behind(self) -> list[Position]:
        """The positions behind which readers of a compacted topic need the log."""
        now_s = self._loop.time()
        self._left_behind = [each for each in self._left_behind if each[0] > now_s]
        needed = [each.needed_behind for each in self._followers.values() if each.needed_behind < LATEST]
        return needed + [position for _, position in self._left_behind]

    def follow(self, session: Session, request: Follow) -> None:
        """Arm or disarm, and answer with where the log is now."""
        self.send_held()
        number = request.subscription_number
        follower = self._followers.get(number)
        is_new = (
            follower is None or follower.session is not session or follower.attachment != session.attachment
        )
        if follower is None or is_new:
            # Packets over a carrier that is gone may not have arrived: all of it is sent again.
            follower = self._followers[number] = _Follower(session)
        follower.armed = request.armed
        follower.behind = False
        self._send_to(follower, ())
        if is_new:
            self._send_expired(number, follower)

    def expired(self, numbers: Iterable[int]) -> None:
        """The broker has acknowledged for subscriptions, durably: tell those that run."""
        self.send_held()
        for number in numbers:
            follower = self._followers.get(number)
            if follower is not None:
                if not follower.armed:
                    self._send_to(follower, ())  # it may not know of the entries yet
                self._send_expired(number, follower)

    def _send_expired(self, number: int, follower: _Follower) -> None:
        known = self._ledger.changes.subscription(number)
        if known is not None and known.expired > EARLIEST:
            follower.session.send(encode_request(Expired(*known.expired)))

    def segments_changed(self) -> None:
        """Tell all of segments that came or went without an entry."""
        self.send_held()
        for follower in self._followers.values():
            self._send_to(follower, ())

    def forget(self, session: Session) -> None:
        """The session ended.

        The log that its readers need stays until they had time to go on elsewhere.
        """
        until_s = self._loop.time() + RETURN_S
        for each in self._followers.values():
            if each.session is session and each.needed_behind < LATEST:
                self._left_behind.append((until_s, each.needed_behind))
        self._followers = {n: f for n, f in self._followers.items() if f.session is not session}

    def advanced(self, result: AppendResult) -> None:
        """Tell, at once or soon, what a commit has added to the readable log."""
        before, self._last = self._last, self._log.readable.position
        if not self._followers:
            return
        if not self._held:
            self._before_held = before
        self._held += result.frames
        for *_, header in result.frames:
            self._held_bytes += len(header)
        may_wait = bool(result.frames) and self._held_bytes < MAX_HELD_BYTES
        if may_wait and self._loop.time() < self._pause_until:
            if self._timer is None:
                self._timer = self._loop.call_at(self._pause_until, self.send_held)
            return
        self._send_to_armed()

    def send_held(self) -> None:
        """Send commits that are held back: an answer to a follower comes behind them."""
        if self._held:
            self._send_to_armed()

    def _send_to_armed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        frames, self._held, self._held_bytes = self._held, [], 0
        usual: list[Any] | None = None
        armed = 0
        for follower in self._followers.values():
            if not follower.armed:
                continue
            armed += 1
            carrier = follower.session.carrier
            if carrier is None or carrier.unsent_bytes > MAX_UNSENT_BYTES:
                # It reads slower than we write: its next Follow (at the latest after a second) is answered
                # with the position.
                follower.behind = True
            elif follower.segments_version == self._log.segments_version and frames:
                # The same for all of them, nearly always: encoded once.
                usual = usual or self._packet(None, None, frames)
                follower.session.send(usual)
            else:
                self._send_to(follower, frames)
        if armed > 1:
            self._pause_until = self._loop.time() + min(PAUSE_S * (armed - 1), MAX_PAUSE_S)

    def catch_up(self) -> None:
        """Tell those that were left out while their carrier was full."""
        for follower in self._followers.values():
            carrier = follower.session.carrier
            if follower.behind and carrier is not None and carrier.unsent_bytes <= MAX_UNSENT_BYTES:
                follower.behind = False
                self._send_to(follower, ())

    def _send_to(self, follower: _Follower, frames: Frames) -> None:
        log = self._log
        segments = tail = None
        if follower.segments_version != log.segments_version:
            follower.segments_version = log.segments_version
            segments = [_described(segment) for segment in log.readable_segments()]
        elif not frames and (known := log.readable_segments()):
            tail = _described(known[-1])
        follower.session.send(self._packet(segments, tail, frames))

    def _packet(
        self, segments: list[SegmentRow] | None, tail: SegmentRow | None, frames: Frames
    ) -> list[Any]:
        ledger = self._ledger
        positions = (*self._log.readable.position, *self._log.first_position)
        fields = (ledger.epoch, *positions, segments, tail, *self._before_held, frames)
        if segments is None:
            return self._encoder.encode(fields)
        compacted = ledger.changes.compacted
        return self._encoder.encode((*fields, () if compacted is None else compacted))


def _described(segment: SegmentInfo) -> SegmentRow:
    return (
        segment.ledger_id,
        segment.segment_index,
        str(segment.path),
        segment.first_entry_id,
        segment.end_offset,
        segment.last_entry_id,
    )
