"""Lets people with a browser in, and refuses forms of other sites."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from aiohttp import web

from pulsar_ray.errors import AuthenticationError
from pulsar_ray.gateway.doors import COOKIE, UI, Doors, caller_role, cookie_of, is_page
from pulsar_ray.gateway.page.rendering import Rendering
from pulsar_ray.gateway.replies import Handler, Refusal, text_of
from pulsar_ray.security.authentication import Credentials, basic_header

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

FORM_BYTES = 64 << 10


class Visitors:
    """Knows visitors by a cookie, which REST and WebSockets never heed."""

    def __init__(self, doors: Doors, rendering: Rendering, *, is_outside_tls: bool) -> None:
        self._is_outside_tls = is_outside_tls
        self._doors = doors
        self._rendering = rendering
        self._secret = secrets.token_bytes(32)

    @property
    def mark(self) -> str:
        """Return the secret that forms of this page have, for this role."""
        return hmac.new(self._secret, caller_role().encode(), hashlib.sha256).hexdigest()

    def check_mark(self, mark: str) -> None:
        """Raise Refusal unless a form is of this page, role and life of the gateway."""
        if not hmac.compare_digest(mark.encode(), self.mark.encode()):
            raise Refusal(403, "this form is older than the gateway, or of another page: load it again")

    async def form(self, request: web.Request) -> web.Response:
        """Ask for a token, or a name and a password."""
        return self._rendering.page("login.html", problem="", back=_back(request.query.get("back", "/")))

    async def enter(self, request: web.Request) -> web.StreamResponse:
        """Keep the credentials of a form in a cookie, if they are right."""
        given = await fields_of(request)
        token, user, password = (given.get(name, "").strip() for name in ("token", "user", "password"))
        shown = f"Bearer {token}" if token else basic_header(user, password)
        back = _back(given.get("back", "/"))
        response = _see(back)
        try:
            self._doors.enter(request, Credentials(shown), response.status)
        except AuthenticationError as error:
            return self._rendering.page("login.html", 401, problem=text_of(error), back=back)
        has_tls = request.transport is not None and request.transport.get_extra_info("sslcontext")
        is_secure = self._is_outside_tls or has_tls
        response.set_cookie(
            COOKIE, cookie_of(shown), httponly=True, samesite="Strict", secure=bool(is_secure)
        )
        return response

    async def leave(self, request: web.Request) -> web.StreamResponse:
        """Forget the cookie."""
        self.check_mark((await fields_of(request)).get("mark", ""))
        response = _see(f"{UI}/login")
        response.del_cookie(COOKIE)
        return response

    def as_pages(self) -> Middleware:
        """Return the step that shows refusals as pages, and asks strangers who they are."""

        @web.middleware
        async def show(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await handler(request)
            if response.status < 400 or not is_page(request) or response.content_type == "text/html":
                return response
            if response.status == 401 and request.method == "GET" and "HX-Request" not in request.headers:
                return _see(f"{UI}/login?{urlencode({'back': request.rel_url.raw_path_qs}, safe='/')}")
            reason = response.text if isinstance(response, web.Response) else ""
            return self._rendering.page("error.html", response.status, reason=_reason(reason or ""))

        return show


async def fields_of(request: web.Request) -> dict[str, str]:
    """Return the fields of a form. Raises Refusal for what is none."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise Refusal(415, f"the body is {request.content_type}: forms are sent by the page")
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise Refusal(415, f"the form is {request.charset!r:.50}: forms are sent in UTF-8")
    if (request.content_length or 0) > FORM_BYTES:
        raise Refusal(413, f"the form is larger than {FORM_BYTES} bytes")
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}


def _see(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path})


def _back(path: str) -> str:
    """Return a path of this server.

    A link to the login must not lead to another site. Browsers leave out tabs and lines' ends, so that a path
    with one between two slashes would.
    """
    is_here = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_here and path.isprintable() else "/"


def _reason(body: str) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return body
