"""Opens producers and consumers at their actors, also behind each new carrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.endpoint.pending_close import PendingClose
from pulsar_ray.errors import AlreadyClosed, BrokerPersistenceError, PulsarException
from pulsar_ray.session.requests import Request
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.endpoint import Reply

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
