"""Knows whether an endpoint is closed for good, while its connection comes and goes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.session.requests import CloseEndpoint


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
