"""Closes a consumer or producer at its actor, where it may be open.

It closes, or was given up before its actor answered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.endpoint.pending_close import PendingClose
from pulsar_ray.errors import NotConnected, PulsarException, SessionLost
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session.requests import CloseEndpoint
from pulsar_ray.transport.actor_attacher import ATTACH_TIMEOUT_S
from pulsar_ray.transport.cluster import AttachReply

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
            return
        if self._pending_close.is_confirmed():
            self._end()
        else:
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
