"""Opening a producer or consumer again, at an actor that a new carrier was attached to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_ray.errors import PulsarException
from pulsar_ray.session.requests import Request
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.link import ActorLink

RETRY_S = 0.1


class Reopening:
    """Asked once, over the carrier that stands now: behind the next one it is asked anew.

    `opened` gets the answer and the carrier, `refused` an error that is final. If the actor could not just
    now, `again` is called soon: its carrier stands, so nothing else would ask.
    """

    def __init__(
        self,
        link: ActorLink,
        request: Callable[[int], Request],
        opened: Callable[[Any, Connection], None],
        refused: Callable[[PulsarException], None],
        again: Callable[[], None],
    ) -> None:
        self._link = link
        self._carrier = link.carrier
        self._opened = opened
        self._refused = refused
        self._again = again
        link.request_async(request, self._answered)

    def _answered(self, answer: Any, error: PulsarException | None) -> None:
        if error is not None and not error.retriable:
            self._refused(error)
        elif self._carrier is None or self._link.carrier is not self._carrier:
            return
        elif error is None:
            self._opened(answer, self._carrier)
        else:
            self._link.timers.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        if self._link.carrier is self._carrier:
            self._again()
