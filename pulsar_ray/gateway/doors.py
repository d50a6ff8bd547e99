"""Lets those in who say who they are and have the right to."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from pulsar_ray.broker.serving.logs.line_limits import audit
from pulsar_ray.config import Settings
from pulsar_ray.errors import AuthenticationError
from pulsar_ray.gateway.calls import Calls
from pulsar_ray.gateway.replies import Handler, Refusal, refused, status_of, text_of
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authentication import NOBODY, Caller, Credentials
from pulsar_ray.security.authorization import NO_GRANTS, Grants, Resource, Right
from pulsar_ray.security.entrance import Entrance
from pulsar_ray.security.tls import common_name

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

WEB_SOCKETS = "/ws/v2/"
ADMINISTRATION = "/admin/v2/"
UI = "/ui"
"""Below it, and at /, is what browsers are shown."""
OPEN = (f"{UI}/login", f"{UI}/static/")
"""Paths for those who have not said who they are yet."""
COOKIE = "pulsar_ray"
"""Holds what a browser would show in `Authorization`; only pages heed it."""
LEFT = 499
"""Stands in the audit log for a caller who went before the answer."""
GRANTS_LAST_S = 1.0
"""How long grants are believed that the controller has told."""
KEPT_GRANTS = 10_000
_NAME = re.compile(r"\{(\w+)\}")
_caller: ContextVar[Caller] = ContextVar("caller", default=NOBODY)


class Route(NamedTuple):
    """A route as it was added; `path` has parameters as aiohttp writes them."""

    method: str
    path: str
    right: Right
    summary: str


class GuardedRoutes:
    """Adds routes to a router, each with the right that it needs."""

    def __init__(self, router: web.UrlDispatcher, rights: dict[Handler, Right]) -> None:
        self._router = router
        self._rights = rights
        self.added: list[Route] = []

    def add(self, method: str, path: str, right: Right, handler: Handler) -> None:
        """Add a route; one for GET answers HEAD as well."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request)

        handle.__doc__ = handler.__doc__
        self.added.append(Route(method, path, right, (handler.__doc__ or "").strip().partition("\n")[0]))
        self._rights[handle] = right
        # aiohttp's own pattern takes no braces, which names may have.
        pattern = _NAME.sub(r"{\1:[^/]+}", path)
        for each in ("GET", "HEAD") if method == "GET" else (method,):
            self._router.add_route(each, pattern, handle)


class Doors:
    """Asks everybody who they are, and what they may, before any route is served."""

    def __init__(self, settings: Settings, calls: Calls, now_s: Callable[[], float] = time.time) -> None:
        self._entrance = Entrance(settings)
        self._authentication = self._entrance.authentication
        self._is_behind_proxy = bool(settings.advertised_authority())
        self.rights: dict[Handler, Right] = {}
        """The right that each route needs, by its handler."""
        self._call = calls
        self._now_s = now_s
        self._grants: OrderedDict[str, tuple[float, Grants]] = OrderedDict()

    def middleware(self) -> Middleware:
        """Return the step that every request passes; it answers 401 itself."""

        @web.middleware
        async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.startswith(OPEN):
                return await handler(request)
            try:
                caller = self._authentication.who(_shown(request), self._now_s())
            except AuthenticationError as error:
                self.note_refusal(request, 401)
                refusal = refused(text_of(error), status_of(error))
                refusal.headers["WWW-Authenticate"] = self._authentication.challenge
                return refusal
            _caller.set(caller)
            is_socket = request.path.startswith(WEB_SOCKETS)
            status = LEFT
            try:
                if self._entrance.decides and request.match_info.http_exception is None:
                    # A route without a right is nobody's but the superusers'.
                    right = self.rights.get(request.match_info.handler, Right.SUPERUSER)
                    await self.check(right, _resource(request))
                if is_socket:
                    # Its end may be days away.
                    self._note(request, caller, 101)
                response = await handler(request)
                status = response.status
                return response
            except Exception as error:
                status = getattr(error, "status", 0) or status_of(error)
                raise
            finally:
                is_change = request.path.startswith(ADMINISTRATION) or (
                    request.method == "POST" and is_page(request)
                )
                if is_change or status in (401, 403):
                    self._note(request, caller, status)

        return ask

    def enter(self, request: web.Request, shown: Credentials, status: int) -> None:
        """Note that somebody comes in, whose request is answered with a status.

        Raises AuthenticationError, and notes that, if nobody has these credentials.
        """
        try:
            caller = self._authentication.who(shown, self._now_s())
        except AuthenticationError as error:
            self.note_refusal(request, status_of(error))
            raise
        self._note(request, caller, status)

    def note_refusal(self, request: web.Request, status: int) -> None:
        """Write in the audit log that somebody was refused before being asked who they are."""
        self._note(request, NOBODY, status)

    def _note(self, request: web.Request, caller: Caller, status: int) -> None:
        """Write a line of the audit log, without the query, where tokens are."""
        path = request.rel_url.raw_path[:1000]
        # Only the proxy's own last entry is not a claim of whoever asked.
        # It may be a header of its own, behind that of whoever asked.
        forwarded = request.headers.getall("X-Forwarded-For", [""])[-1] if self._is_behind_proxy else ""
        address = forwarded.rpartition(",")[2].strip()[:100] or request.remote
        audit("%r at %s: %s %s: %d", caller.role, address, request.method, path, status)

    async def check(self, right: Right, resource: Resource) -> None:
        """Raise AuthorizationError unless the caller has this right."""
        role = _caller.get().role
        if self._entrance.is_open_to(role, right):
            return
        grants = NO_GRANTS if right is Right.SUPERUSER else await self._granted(resource.name)
        self._entrance.check(role, right, resource, grants)

    async def _granted(self, subject: str) -> Grants:
        now_s = time.monotonic()
        known = self._grants.get(subject)
        if known is not None and now_s - known[0] < GRANTS_LAST_S:
            return known[1]
        described = await self._call(self._call.admin.namespaces.permissions.deciding, subject)
        grants = Grants.of(described)
        self._grants[subject] = (now_s, grants)
        self._grants.move_to_end(subject)
        if len(self._grants) > KEPT_GRANTS:
            self._grants.popitem(last=False)
        return grants


def caller_role() -> str:
    """Return the role of whoever is being answered."""
    return _caller.get().role


def is_page(request: web.Request) -> bool:
    """Return whether a request is a browser's, for a page or a part of one."""
    return request.path == "/" or request.path.startswith(f"{UI}/")


def _shown(request: web.Request) -> Credentials:
    # Browsers cannot give a WebSocket headers; elsewhere a token in an address would stand in logs.
    token = request.query.get("token", "") if request.path.startswith(WEB_SOCKETS) else ""
    peer = request.transport.get_extra_info("peercert") if request.transport is not None else None
    authorization = request.headers.get("Authorization", "")
    if not authorization and is_page(request):
        # Elsewhere a cookie would let pages of other sites act for whoever has it.
        authorization = _kept_in(request.cookies.get(COOKIE, ""))
    return Credentials(authorization, token, common_name(peer))


def cookie_of(authorization: str) -> str:
    """Return the cookie that stands for a header."""
    return base64.b64encode(authorization.encode()).decode()


def _kept_in(cookie: str) -> str:
    try:
        return base64.b64decode(cookie, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _resource(request: web.Request) -> Resource:
    """Return the resource of a path, by the name that the broker is given."""
    of = request.match_info
    for part in ("tenant", "namespace"):
        # Else a tenant's administrator could name others, and be told of those that are near.
        if "/" in of.get(part, ""):
            raise Refusal(412, f"{of[part][:100]!r} is no {part}: it has a slash")
    name = of.get("tenant", "")
    if "namespace" in of:
        name = f"{name}/{of['namespace']}"
    if "topic" in of:
        name = TopicName.parse(f"{of.get('domain', 'persistent')}://{name}/{of['topic']}").full
    return Resource(name, of.get("subscription", ""))
