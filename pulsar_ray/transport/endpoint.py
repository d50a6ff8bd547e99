"""Knows a link's endpoints, what waits for answers, and whether the actor is silent."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pulsar_ray.errors import PulsarException, SessionLost, error_from
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.session.requests import ConsumerOpened, Done, Failed, Ping, ProducerOpened, encode_request
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply, Cluster


class WakeableEvent(Protocol):
    """An event that its waiting threads can be woken from, although it is not set."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None, unless: Callable[[], bool] | None = None) -> bool:
        """Block until it is set or woken; not at all if `unless` is true."""

    def wake(self) -> None:
        """Let the waiting threads look again. Takes locks for moments only."""


class CarrierWaiters:
    """Knows the events that threads wait for while nobody reads a carrier for them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[WakeableEvent] = []

    def wait(self, event: WakeableEvent, timeout: float, has_changed: Callable[[], bool]) -> None:
        """Wait until `event` is set or `has_changed`, of which `wake_all` must follow."""
        with self._lock:
            self._events.append(event)
        try:
            event.wait(timeout, has_changed)
        finally:
            with self._lock:
                self._events.remove(event)

    def wake_all(self) -> None:
        """Let all threads look at the carrier again. Called without locks, behind the change."""
        with self._lock:
            events = list(self._events)
        for event in events:
            event.wake()


Reply = Callable[[Any, PulsarException | None], None]
"""reply(value, None) or reply(None, error)."""
ANSWERS = (Done, Failed, ProducerOpened, ConsumerOpened)


class PendingRequests:
    """The requests of one link that wait for answers.

    Each request has an id of its own, and its reply is called once.
    """

    def __init__(self) -> None:
        self.awaited: dict[int, Reply] = {}
        """The replies of those that were not answered yet, by their ids."""
        self._request_ids = itertools.count(1)

    def add(self, reply: Reply) -> int:
        """The id for a request whose answer goes to `reply`."""
        request_id = next(self._request_ids)
        self.awaited[request_id] = reply
        return request_id

    def answered(self, answer: Done | Failed | ProducerOpened | ConsumerOpened) -> None:
        """An answer arrived; one that nobody waits for is dropped."""
        reply = self.awaited.pop(answer.request_id, None)
        if reply is None:
            return
        if type(answer) is Failed:
            reply(None, error_from(answer.error, answer.text, answer.details))
        elif type(answer) is Done:
            reply(answer.value, None)
        else:
            reply(answer, None)

    def fail(self, request_id: int, error: PulsarException) -> None:
        """A request could not be sent; nothing happens if its reply was called meanwhile."""
        reply = self.awaited.pop(request_id, None)
        if reply is not None:
            reply(None, error)

    def fail_all(self, error: PulsarException) -> None:
        """No answer will come any more to what was asked so far."""
        replies, self.awaited = self.awaited, {}
        for reply in replies.values():
            reply(None, error)


FOLLOWER = 0
"""The endpoint id of a follower, which is alone on its link."""


class Endpoint(Protocol):
    """A producer, consumer or follower on a link.

    All methods are called on the I/O thread or the thread that reads.
    """

    @property
    def awaits_packets(self) -> bool:
        """Whether a packet may come for this endpoint before anything else is sent."""

    @property
    def needs_actor(self) -> bool:
        """Whether an actor asleep has to be woken for something that waits here.

        For something that comes later the endpoint calls the link's `wake`.
        """

    @property
    def awaited_consumer(self) -> tuple[int, bool] | None:
        """A consumer that its dispatcher waits for when it wakes.

        (incarnation, whether its end calls for an election); None of other endpoints.
        """

    def send_last(self) -> None:
        """Send what a close would send first: this process ends. It must not block."""

    def reopen(self, attached: AttachReply) -> None:
        """A new attachment stands: open again and resend what is pending."""

    def on_detached(self) -> None:
        """The carrier is gone: write nothing until `reopen`."""

    def on_refused(self, error: PulsarException) -> None:
        """The topic or subscription was deleted: the endpoint will never be open again."""

    def on_request(self, request: Any, body: memoryview) -> None:
        """A packet for this endpoint."""

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Receipts for this endpoint's blocks (producers only)."""


PING_INTERVAL_S = 2.0
SILENCE_S = 5.0


class KeepAlive:
    """Watches the connection that a link has now: `carrier()`.

    Earlier ones are left alone.

    Always on the I/O thread, which goes on while a program blocks its loop. `lost` is called with a
    connection that ended, `unused` when the loop it was for is closed.
    """

    def __init__(
        self,
        cluster: Cluster,
        carrier: Callable[[], Connection | None],
        lost: Callable[[Connection, BaseException], None],
        unused: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._cluster = cluster
        self._carrier = carrier
        self._lost = lost
        self._unused = unused
        self._loop = loop
        self._io = IoThread.get()
        self.heard_at = 0.0
        """When anything came last, by time.monotonic()."""

    def begin(self, connection: Connection, address: str) -> None:
        """Look after a new connection to the actor of this name."""
        self.heard_at = time.monotonic()
        self._look_later(connection, address)

    def _look_later(self, connection: Connection, address: str) -> None:
        self._io.call_later(PING_INTERVAL_S, lambda: self._look(connection, address))

    def _look(self, connection: Connection, address: str) -> None:
        if self._carrier() is not connection:
            return
        if self._loop is not None and self._loop.is_closed():
            # Nobody will read or use this any more; the session must not outlive its program's loop.
            self._unused()
            return
        if time.monotonic() - self.heard_at > SILENCE_S and not connection.has_unread:
            silent = SessionLost(f"{address} has been silent for {SILENCE_S} s")
            threading.Thread(target=self._cluster.report_silent, args=(address,), daemon=True).start()
            self._lost(connection, silent)
            return
        try:
            connection.keep_alive(b"".join(encode_request(Ping(0))))
        except (PulsarException, OSError) as error:
            self._lost(connection, error)
            return
        self._look_later(connection, address)
