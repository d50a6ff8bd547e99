"""What a consumer tells its dispatcher and must not be lost: acknowledgments, and what is to come again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from pulsar_ray.errors import NotConnected, PulsarException, SessionLost
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Request
from pulsar_ray.transport.actor_link import ActorLink


class PendingRequest:
    """`build(request id)` makes the request. `answered`: it was carried out, or refused with `error`."""

    __slots__ = ("_then", "answered", "build", "carried_out", "error")

    def __init__(
        self, build: Callable[[int], Request], carried_out: Callable[[], None] | None = None
    ) -> None:
        self.build = build
        self.carried_out = carried_out
        self.answered = threading.Event()
        self.error: PulsarException | None = None
        self._then: deque[Callable[[], None]] = deque()

    def settle(self, error: PulsarException | None) -> None:
        """There is an answer, or there will be none."""
        if error is None and self.carried_out is not None:
            self.carried_out()
        self.end(error)

    def end(self, error: PulsarException | None) -> None:
        """Whoever waits goes on."""
        self.error = error
        self.answered.set()
        with suppress(IndexError):
            while True:
                callback = self._then.popleft()
                callback()

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call back once there is an answer, or when there will be none; possibly at once."""
        self._then.append(callback)
        # Whoever answers looks at the list after the event: one of the two always sees the other.
        if self.answered.is_set():
            self.end(self.error)


class UnansweredRequests:
    """Kept until the dispatcher answers, and said again after each re-attach: a repeat harms nothing.

    Whether one that got no answer had arrived, or died with its dispatcher, cannot be known.
    """

    def __init__(self, link: ActorLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._unanswered: dict[PendingRequest, None] = {}

    def add(self, statement: PendingRequest) -> None:
        """Keep it; `send` or, after the next re-attach, `send_all` says it."""
        with self._lock:
            self._unanswered[statement] = None

    def send(self, statement: PendingRequest, behind: Sequence[Buffer] = ()) -> None:
        """Say it now, and the packets `behind` it in the same breath. What cannot be sent stays."""

        def answered(_value: object, error: PulsarException | None) -> None:
            if isinstance(error, (SessionLost, NotConnected)):
                return
            with self._lock:
                if statement not in self._unanswered:
                    return
                del self._unanswered[statement]
            statement.settle(error)

        self._link.request_async(statement.build, answered, behind=behind)

    def send_all(self) -> None:
        """Attached again: say everything that was not answered, in order."""
        for statement in self.unanswered():
            self.send(statement)

    def unanswered(self) -> list[PendingRequest]:
        """What may not have been carried out yet, in order."""
        with self._lock:
            return list(self._unanswered)

    def take(self) -> list[PendingRequest]:
        """Say none of them again; whoever takes them ends them."""
        with self._lock:
            unanswered, self._unanswered = self._unanswered, {}
        return list(unanswered)

    def discard(self, error: PulsarException | None = None) -> None:
        """Say none of them again; whoever waits for one gets `error`."""
        for statement in self.take():
            statement.end(error)
