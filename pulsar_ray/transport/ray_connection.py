"""The client's end of the Ray carrier.

A session's packets travel in calls of the actor's `exchange` method.

The same interface as a lane's connection; with a loop, packets are handed over there. A thread that waits
makes its own call and takes what comes down with it; for the others one thread per connection takes packets
up. A second one keeps a call waiting at the actor, if that sends of its own accord or there is a loop; a
newer call releases it, so that nothing queues behind it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from pulsar_ray.errors import AlreadyClosed, NotConnected, PulsarException, SessionLost, Timeout
from pulsar_ray.lane.connection import Awaited, ConnectionHandler
from pulsar_ray.session.packet import Packet, decode_packet, whole_packets
from pulsar_ray.session.tunnel import TunnelEnd
from pulsar_ray.transport.cluster import AttachReply, Cluster

MAX_UP_BYTES = 4 * 1024 * 1024
CALL_TIMEOUT_S = 5.0
IDLE_POLL_S = 0.5
WAIT_SLICE_S = 0.05
LOST_CALLS = 3


class RayConnection:
    """Thread-safe.

    Calls that fail are made again, with the same packets; a few failures in a row end it.
    """

    kind = "ray"

    def __init__(
        self,
        cluster: Cluster,
        address: str,
        attached: AttachReply,
        handler: ConnectionHandler,
        *,
        pushes: bool,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._cluster = cluster
        self._address = address
        self._attached = attached
        self._handler = handler
        self._loop = loop
        self._handed_over = 0
        self._handled = 0
        self._end = TunnelEnd()
        self._end_lock = threading.Lock()
        self._deliver_lock = threading.RLock()
        self._work = threading.Condition()
        self._has_up = False
        self._open_calls = 0
        self._failures = 0
        self._lost: PulsarException | None = None
        threading.Thread(target=self._take_up, name="pulsar-ray-tunnel-up", daemon=True).start()
        if pushes or loop is not None:
            # On a loop nobody waits in a call of its own: answers have to come by themselves.
            threading.Thread(target=self._poll, name="pulsar-ray-tunnel-down", daemon=True).start()

    @property
    def is_lost(self) -> bool:
        """True once it cannot be used any more."""
        return self._lost is not None

    def send(self, buffers: Sequence[Any], *, waits: bool = False) -> None:
        """Queue packets; a waiting caller, or the connection's thread, takes them up.

        Raises once it is lost.

        `waits`: the caller is about to `wait`, and will take them up itself.
        """
        if self._lost is not None:
            raise SessionLost(self._lost.text)
        with self._end_lock:
            for packet in whole_packets(b"".join(buffers)):
                self._end.send(packet)
        if waits:
            # Nobody is woken. Should the caller be kept from waiting, the thread's next look finds them.
            with self._work:
                self._has_up = True
        else:
            self._tell_work()

    def room(self, length: int) -> memoryview | None:
        """None: what goes up is joined anyway."""
        return None

    def keep_alive(self, packet: bytes) -> None:
        """Queue a small packet that shows that this process lives."""
        self.send([packet])

    def write_at_once(self) -> None:
        """Do nothing: a thread takes packets up as long as the process lives."""

    @property
    def has_unread(self) -> bool:
        """Whether packets arrived that the loop has not handled yet.

        The peer is not silent then.
        """
        return self._handled < self._handed_over

    def wait(self, awaited: Awaited, deadline: float) -> bool:
        """Wait until `awaited` is set; False at the deadline or once lost."""
        while not awaited.is_set():
            remaining = deadline - time.monotonic()
            if self._lost is not None or remaining <= 0:
                return awaited.is_set()
            if self._take_up_work() or not self._open_calls:
                # With nothing to take up, this call waits at the actor for what comes down.
                self._exchange()
            else:
                awaited.wait(min(remaining, WAIT_SLICE_S))
        return True

    def close(self) -> None:
        """Make no more calls; `on_lost` is not called."""
        if self._lost is None:
            self._lost = AlreadyClosed("the connection was closed by its owner")
        with self._work:
            self._work.notify_all()

    def _take_up_work(self) -> bool:
        with self._work:
            taken, self._has_up = self._has_up, False
            return taken

    def _take_up(self) -> None:
        while self._lost is None:
            with self._work:
                is_idle = not self._has_up and not self._work.wait(IDLE_POLL_S)
            # Nobody else fetches receipts that came too late for the call that asked for them.
            if self._take_up_work() or (is_idle and not self._open_calls):
                self._exchange()

    def _poll(self) -> None:
        while self._lost is None:
            self._exchange(polls=True)

    def _exchange(self, *, polls: bool = False) -> None:
        with self._end_lock:
            if self._open_calls and not polls and not self._end.has_outgoing:
                # Another call took the packets up; one that waits at the actor is enough.
                return
            last_received, packets = self._end.begin_call(MAX_UP_BYTES)
            more = self._end.has_outgoing
            self._open_calls += 1
        if more:
            self._tell_work()
        try:
            self._call(last_received, packets)
        finally:
            with self._end_lock:
                self._open_calls -= 1

    def _call(self, last_received: int, packets: Sequence[tuple[int, Any]]) -> None:
        attached = self._attached
        try:
            call = self._cluster.exchange(
                self._address,
                attached.session_id,
                attached.attachment,
                attached.token,
                (last_received, packets),
            )
            received, down = self._cluster.exchange_result(call, CALL_TIMEOUT_S)
        except (NotConnected, Timeout) as error:
            self._failed(error)
        except AlreadyClosed as error:
            # The program ends: there is nothing to attach again for.
            self._lost = self._lost or error.again()
        except PulsarException as error:
            self._lose(error)
        else:
            self._failures = 0
            try:
                self._received(received, down)
            except PulsarException as error:
                self._lose(error)

    def _received(self, last_received: int, down: Sequence[tuple[int, bytes]]) -> None:
        # Packets are taken out of the tunnel and handed on under one lock, or two threads could swap them.
        with self._deliver_lock:
            with self._end_lock:
                packets = [decode_packet(packet) for packet in self._end.end_call(last_received, down)]
            if packets:
                self._hand_over(packets)

    def _hand_over(self, packets: list[Packet]) -> None:
        if self._loop is None:
            self._handle(packets)
            return
        self._handed_over += 1
        try:
            self._loop.call_soon_threadsafe(self._handle_on_loop, packets)
        except RuntimeError:
            raise SessionLost("the event loop of this connection was closed") from None

    def _handle_on_loop(self, packets: list[Packet]) -> None:
        self._handled += 1
        try:
            self._handle(packets)
        except PulsarException as error:
            self._lose(error)

    def _handle(self, packets: list[Packet]) -> None:
        if self._lost is None:
            self._handler.on_packets(self, packets)  # type: ignore[arg-type]

    def _failed(self, error: PulsarException) -> None:
        with self._end_lock:
            self._end.failed()
        self._failures += 1
        if self._failures >= LOST_CALLS or isinstance(error, SessionLost):
            self._lose(error)
            return
        self._tell_work()

    def _tell_work(self) -> None:
        with self._work:
            self._has_up = True
            self._work.notify()

    def _lose(self, error: PulsarException) -> None:
        with self._work:
            if self._lost is not None:
                return
            self._lost = error = error.again()
        self._handler.on_lost(self, error)  # type: ignore[arg-type]
