"""Lets those in who say who they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from pulsar_ray.errors import AuthenticationError
from pulsar_ray.gateway.replies import Handler, refused, status_of, text_of
from pulsar_ray.security.authentication import Authentication, Credentials

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

WEB_SOCKETS = "/ws/v2/"


class Doors:
    """Asks everybody who they are before any route is served."""

    def __init__(self, authentication: Authentication, now_s: Callable[[], float] = time.time) -> None:
        self._authentication = authentication
        self._now_s = now_s

    def middleware(self) -> Middleware:
        """Return the step that every request passes; it answers 401 itself."""

        @web.middleware
        async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                self._authentication.who(_shown(request), self._now_s())
            except AuthenticationError as error:
                refusal = refused(text_of(error), status_of(error))
                refusal.headers["WWW-Authenticate"] = self._authentication.challenge
                return refusal
            return await handler(request)

        return ask


def _shown(request: web.Request) -> Credentials:
    # Browsers cannot give a WebSocket headers; elsewhere a token in an address would stand in logs.
    token = request.query.get("token", "") if request.path.startswith(WEB_SOCKETS) else ""
    return Credentials(request.headers.get("Authorization", ""), token)
