"""The actor's end of the Ray carrier: packets through calls of its `exchange` method."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.errors import PulsarException, SessionLost
from pulsar_ray.lane.serving.server_lane import DrainSignal
from pulsar_ray.session.packet import Buffer, Packet, decode_packet
from pulsar_ray.session.tunnel import TunnelEnd

WAIT_S = 1.0
MAX_DOWN_BYTES = 4 * 1024 * 1024
DRAINED_BYTES = 1024 * 1024


class TunnelCarrier:
    """Numbered packets down wait here until a call fetches them.

    A newer call releases the one that waits.
    """

    kind = "ray"
    is_peer_stopped = False
    """Ray does not show whether a client's process is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._end = TunnelEnd()
        self._waiter: asyncio.Future[None] | None = None
        self._error: PulsarException | None = None
        self._drain = DrainSignal()
        self._is_held = False
        self._unread: deque[Buffer] = deque()
        self._deliver: Callable[[list[Packet]], None] = _nobody

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for a call or for its confirmation."""
        return self._end.unconfirmed_bytes

    @property
    def has_waiting(self) -> bool:
        """Whether packets wait that no call has fetched yet."""
        return self._error is None and self._end.has_outgoing

    async def drained(self) -> None:
        """Wait until the client has confirmed all but little, or the carrier has ended."""
        if self._error is None and self.unsent_bytes > DRAINED_BYTES:
            await self._drain.wait()

    def send(self, buffers: Sequence[Any]) -> None:
        """Queue one packet for the next call."""
        if self._error is None:
            self._end.send(b"".join(buffers))
            self._release()

    def retain(self, count: int) -> None:
        """Do nothing: calls bring at most what one client may have under way."""

    def release(self, count: int) -> None:
        """See `retain`."""

    def hold_reading(self, *, held: bool) -> None:
        """Keep what calls bring, while `held`: no more than one client may have under way."""
        self._is_held = held
        try:
            while self._unread and not self._is_held and self._error is None:
                self._deliver([decode_packet(self._unread.popleft())])
        except PulsarException as error:
            self.close(error)

    def close(self, error: PulsarException | None = None) -> None:
        """Calls that wait or come later raise `error`."""
        self._error = error or SessionLost("the actor closed the session: attach again")
        self._drain.fire()
        self._release()

    async def exchange(
        self, last_received: int, packets: Sequence[tuple[int, Any]], deliver: Callable[[list[Packet]], None]
    ) -> tuple[int, list[tuple[int, bytes]]]:
        """One call: `deliver` gets what is new, the reply takes what waits. SessionLost after `close`."""
        if self._error is not None:
            raise self._error.again()
        fresh = self._end.answer(last_received, packets)
        if self.unsent_bytes <= DRAINED_BYTES:
            self._drain.fire()
        if fresh and not self._is_held:
            deliver([decode_packet(packet) for packet in fresh])
        elif fresh:
            self._deliver = deliver
            self._unread += fresh
        self._release()
        if not self._end.has_outgoing:
            await self._wait()
        if self._error is not None:
            raise self._error.again()
        return self._end.outgoing(MAX_DOWN_BYTES)

    async def _wait(self) -> None:
        self._waiter = waiter = self._loop.create_future()
        timer = self._loop.call_later(WAIT_S, _settle, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def _release(self) -> None:
        if self._waiter is not None:
            _settle(self._waiter)


def _nobody(packets: list[Packet]) -> None:
    """Stand for the session before anything is kept for it."""


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
