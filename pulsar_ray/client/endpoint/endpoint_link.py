"""Opens producers and consumers at an actor, behind each new carrier too, and closes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from pulsar_ray.errors import (
    AlreadyClosed,
    BrokerPersistenceError,
    NotConnected,
    PulsarException,
    SessionLost,
    WrongNode,
)
from pulsar_ray.lane.io_thread import LoopTimers, Timers
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import CloseEndpoint, Request
from pulsar_ray.transport.actor_attacher import ATTACH_TIMEOUT_S
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply
from pulsar_ray.transport.endpoint import Endpoint, Reply, WakeableEvent


class EndpointLink(Protocol):
    """Carries the packets of endpoints; `transport.actor_link.ActorLink` is the real one."""

    timers: Timers
    loop_timers: LoopTimers | None

    @property
    def carrier(self) -> Connection | None: ...

    @property
    def where(self) -> str: ...

    @property
    def is_attached(self) -> bool: ...

    @property
    def is_asleep(self) -> bool: ...

    @property
    def is_parked(self) -> bool: ...

    @property
    def absence(self) -> WrongNode | None: ...

    def ensure_attached(self, deadline: float) -> AttachReply: ...

    def attaches(self, deadline: float) -> bool: ...

    def begin_attaching(self) -> None: ...

    def wake(self) -> None: ...

    def add_endpoint(self, endpoint_id: int, endpoint: Endpoint) -> None: ...

    def remove_endpoint(self, endpoint_id: int) -> None: ...

    def send(self, buffers: list[Any], only_on: Connection | None = None, *, waits: bool = False) -> bool: ...

    def request_async(
        self,
        build: Callable[[int], Request],
        reply: Reply,
        *,
        waits: bool = False,
        behind: Sequence[Buffer] = (),
    ) -> None: ...

    def ask(
        self, send: Callable[[Reply], None], deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any: ...

    def wait(self, event: WakeableEvent, deadline: float) -> bool: ...


class PendingClose:
    """Whether the last request to close reached the actor behind the last to open.

    A close may be answered just when another attachment opens the endpoint again, or when a thread that opens
    it asks again for an answer that was lost. The endpoint then would stay, with nobody left to close it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opens_begun = 0
        self._opens_sent = 0
        self._sent_before_close = -1
        self._has_left = False

    @contextmanager
    def opening(self) -> Iterator[bool]:
        """Enclose the sending of a request to open.

        Gives False once the close is confirmed: nothing must be sent then.
        """
        with self._lock:
            may_open = not self._has_left
            self._opens_begun += may_open
        try:
            yield may_open
        finally:
            with self._lock:
                self._opens_sent += may_open

    def leave_asleep(self, link: EndpointLink) -> bool:
        """Close without a request if the actor sleeps.

        The session is no more, nor anything that was open in it.
        False if the link is not parked: then the close has to be requested.
        """
        with self._lock:
            # A link is not parked any more when it has endpoints opened again: those find this.
            if self._opens_begun != self._opens_sent or not link.is_parked:
                return False
            self._has_left = True
            return True

    def close_request(self, request_id: int, endpoint_id: int) -> CloseEndpoint:
        """Build the request to close, which is sent at once."""
        with self._lock:
            self._sent_before_close = self._opens_sent
        return CloseEndpoint(request_id, endpoint_id)

    def is_confirmed(self) -> bool:
        """Whether the close is answered; if not, it must be requested again."""
        with self._lock:
            # One to open that was being sent meanwhile may have come behind the one to close.
            self._has_left = self._sent_before_close == self._opens_begun
            return self._has_left


RETRY_S = 0.1
REFUSED_BY_DISK_S = 1.0


def request_open(
    link: EndpointLink,
    request: Callable[[int], Request],
    pending_close: PendingClose,
    deadline: float,
    then: Callable[[Any], None] | None = None,
) -> Any:
    """Request the first opening, again while its answer is lost.

    `then` and errors as of `ActorLink.request`. Raises AlreadyClosed if the endpoint was closed before it was
    asked for again: a `ReopenRequest` had an answer earlier.
    """

    def send(reply: Reply) -> None:
        with pending_close.opening() as may_open:
            if not may_open:
                raise AlreadyClosed("it was closed while it was opened")
            link.request_async(request, reply, waits=True)

    return link.ask(send, deadline, then)


class ReopenRequest:
    """Requests the opening once, over the carrier that stands now.

    Behind the next carrier a new one does, unless the endpoint was closed. `opened` gets the answer and the
    carrier, `refused` an error that is final. If the actor could not just now, `again` is called soon: its
    carrier stands, so nothing else would ask. A disk that refuses is one of these: who was open waits for it.
    """

    def __init__(
        self,
        link: EndpointLink,
        request: Callable[[int], Request],
        pending_close: PendingClose,
        opened: Callable[[Any, Connection], None],
        refused: Callable[[PulsarException], None],
        again: Callable[[], None],
    ) -> None:
        self._link = link
        self._carrier = link.carrier
        self._opened = opened
        self._refused = refused
        self._again = again
        with pending_close.opening() as may_open:
            if may_open:
                link.request_async(request, self._answered)

    def _answered(self, answer: Any, error: PulsarException | None) -> None:
        is_by_disk = isinstance(error, BrokerPersistenceError)
        if error is not None and not (error.retriable or is_by_disk):
            self._refused(error)
        elif self._carrier is None or self._link.carrier is not self._carrier:
            return
        elif error is None:
            self._opened(answer, self._carrier)
        else:
            self._link.timers.call_later(REFUSED_BY_DISK_S if is_by_disk else RETRY_S, self._retry)

    def _retry(self) -> None:
        if self._link.carrier is self._carrier:
            self._again()


# It closes, or was given up before its actor answered.

LOOK_S = 0.5
"""How long to wait between two looks whether the actor can be attached to."""


class ClosingEndpoint:
    """Takes the endpoint's place on the link, and requests its close until that is answered.

    Otherwise nobody would ever close it: it would keep an exclusive place, a name, or keys.
    """

    awaits_packets = False
    needs_actor = True
    """The request to close is to be answered."""
    awaited_consumer = None

    def __init__(self, link: EndpointLink, endpoint_id: int, pending_close: PendingClose) -> None:
        self._link = link
        self._endpoint_id = endpoint_id
        self._pending_close = pending_close
        self._is_closed = Completion()
        link.add_endpoint(endpoint_id, self)
        self._request_close()

    def wait(self, deadline: float) -> bool:
        """Wait until the actor has answered, or is no more; False at the deadline.

        An actor that cannot be attached to is not waited for: the close is requested soon after it can.
        """
        while self._link.attaches(min(deadline, time.monotonic() + ATTACH_TIMEOUT_S)):
            # Its actor may go while it is asked.
            if self._link.wait(self._is_closed, min(deadline, time.monotonic() + LOOK_S)):
                return True
            if time.monotonic() > deadline:
                return False
        return True

    def _request_close(self) -> None:
        self._link.request_async(self._close_request, self._answered)

    def _close_request(self, request_id: int) -> CloseEndpoint:
        return self._pending_close.close_request(request_id, self._endpoint_id)

    def _answered(self, _value: object, error: PulsarException | None) -> None:
        if isinstance(error, (SessionLost, NotConnected)):
            # Behind a new attachment it is requested again; over a carrier that stands, a little later.
            if self._link.carrier is not None:
                self._link.timers.call_later(LOOK_S, self._request_again)
        elif self._pending_close.is_confirmed():
            self._end()
        else:
            self._request_close()

    def _request_again(self) -> None:
        if not self._is_closed.is_set() and self._link.carrier is not None:
            self._request_close()

    def _end(self) -> None:
        self._link.remove_endpoint(self._endpoint_id)
        self._is_closed.set()

    def send_last(self) -> None:
        """Do nothing: the close is requested already."""

    def reopen(self, _attached: AttachReply) -> None:
        """Request the close again: this may be the session that the endpoint is open in."""
        self._request_close()

    def on_detached(self) -> None:
        """Do nothing: the close is requested again after the next attach."""

    def on_refused(self, _error: PulsarException) -> None:
        """End: the topic or subscription is no more."""
        self._end()

    def on_request(self, _request: Any, _body: memoryview) -> None:
        """Drop the packet: nobody receives any more."""

    def on_receipts(self, _rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Do nothing: no block was sent."""
