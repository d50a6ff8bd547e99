"""Requests to a dispatcher that must not be lost: acknowledgments, redeliveries, closing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from pulsar_ray.client.acks.ack_tracker import AckBatch
from pulsar_ray.errors import NotConnected, PulsarException, SessionLost, Timeout
from pulsar_ray.lane.waiting import Completion, ensure_may_wait
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Request
from pulsar_ray.transport.actor_link import ActorLink

LOOK_S = 0.5
"""Longest wait between two looks whether the partition is known to be away."""


class PendingRequest:
    """A request that `build(request id)` makes, until it is answered.

    `answered` is set once it was carried out, or refused with `error`. `acknowledged` is what it
    acknowledges.
    """

    __slots__ = ("_then", "acknowledged", "answered", "build", "carried_out", "error")

    def __init__(
        self,
        build: Callable[[int], Request],
        carried_out: Callable[[], None] | None = None,
        acknowledged: AckBatch | None = None,
    ) -> None:
        self.build = build
        self.carried_out = carried_out
        self.acknowledged = acknowledged
        self.answered = Completion()
        self.error: PulsarException | None = None
        self._then: deque[Callable[[], None]] = deque()

    def settle(self, error: PulsarException | None) -> None:
        """End with the dispatcher's answer: None, or the error it refused the request with."""
        if error is None and self.carried_out is not None:
            self.carried_out()
        self.end(error)

    def end(self, error: PulsarException | None) -> None:
        """Release the threads that wait, and call back."""
        self.error = error
        self.answered.set()
        with suppress(IndexError):
            while True:
                callback = self._then.popleft()
                callback()

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call back once there is an answer, or when there will be none.

        The callback may come at once.
        """
        self._then.append(callback)
        # The thread that answers looks at the list after the event: one of the two always sees the other.
        if self.answered.is_set():
            self.end(self.error)


class UnansweredRequests:
    """Keeps requests until they are answered, and repeats them after each re-attach. Thread-safe.

    A repeat harms nothing. Whether an unanswered request arrived, or died with its dispatcher, cannot be
    known.
    """

    def __init__(self, link: ActorLink) -> None:
        self.link = link
        self.is_open = False
        """Whether the consumer is open at the dispatcher: until then requests are kept, not sent."""
        self._lock = threading.Lock()
        self._unanswered: dict[PendingRequest, None] = {}
        self._forgotten: list[PendingRequest] = []

    def forked(self) -> None:
        """Send nothing more, in a forked child, where another thread's lock would stay locked."""
        self._lock = threading.Lock()
        self.is_open = False
        self._unanswered = {}

    def attach_through(self, link: ActorLink) -> None:
        """Use this link from now on; nothing may have been sent yet."""
        self.link = link
        self._unanswered = {}

    def submit(
        self, build: Callable[[int], Request], carried_out: Callable[[], None] | None = None
    ) -> PendingRequest:
        """Keep a request, and send it if the consumer is open."""
        request = PendingRequest(build, carried_out)
        self.add(request)
        if self.is_open:
            self.send(request)
        return request

    def add(self, request: PendingRequest) -> None:
        """Keep a request, for `send`, or for `send_all` after the next re-attach.

        A dispatcher that sleeps is woken for it.
        """
        with self._lock:
            self._unanswered[request] = None
        if not self.is_open:
            self.link.wake()

    def send(self, request: PendingRequest, behind: Sequence[Buffer] = ()) -> None:
        """Send a kept request, and the packets `behind` it in the same write.

        Without a carrier it stays for `send_all`.
        """

        def answered(_value: object, error: PulsarException | None) -> None:
            if isinstance(error, (SessionLost, NotConnected)):
                return
            with self._lock:
                if request not in self._unanswered:
                    return
                del self._unanswered[request]
            request.settle(error)

        self.link.request_async(request.build, answered, behind=behind)

    def send_all(self) -> None:
        """Send everything unanswered, in order, behind a new attachment."""
        for request in self.unanswered():
            self.send(request)

    def unanswered(self) -> list[PendingRequest]:
        """Requests that may not have been carried out yet, in order."""
        with self._lock:
            return list(self._unanswered)

    def wait(self, requests: Sequence[PendingRequest], deadline: float) -> None:
        """Wait until all of these are answered.

        Raises Timeout; WrongNode if the partition is away, after which they are still repeated until an
        answer comes; or the error a request was refused with. Raises NotAllowedError in a callback that must
        not wait.
        """
        ensure_may_wait("waiting for a receipt")
        for request in requests:
            while not self.link.wait(request.answered, min(deadline, time.monotonic() + LOOK_S)):
                if (absence := self.link.absence) is not None:
                    raise absence.again()
                if time.monotonic() >= deadline or self.link.is_closed:
                    raise Timeout(
                        f"{self.link.where} did not answer in time; acknowledgments may not be durable yet"
                    )
            if request.error is not None:
                raise request.error.again()

    def forget(self) -> None:
        """Repeat none of them again; call `end_forgotten` soon, without the consumer's lock."""
        with self._lock:
            self._forgotten += self._unanswered
            self._unanswered = {}

    def end_forgotten(self) -> None:
        """Release the threads that wait for forgotten requests, as if these had been carried out."""
        if self._forgotten:
            with self._lock:
                forgotten, self._forgotten = self._forgotten, []
            for request in forgotten:
                request.end(None)

    def discard(self, error: PulsarException | None) -> None:
        """Repeat none of them again; threads that wait for one get `error`."""
        with self._lock:
            unanswered, self._unanswered = self._unanswered, {}
        for request in unanswered:
            request.end(error)
