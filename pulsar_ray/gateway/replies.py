"""Bodies and status codes, as Pulsar's REST has them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web
from yarl import URL

from pulsar_ray.errors import (
    AlreadyClosed,
    AuthenticationError,
    AuthorizationError,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidTopicName,
    MessageTooBig,
    NotAllowedError,
    OperationNotSupported,
    ProducerBusy,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.launch.listeners import is_loopback

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_NUMBER = re.compile("-?[0-9]{1,19}")

# The first that fits counts.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (AuthenticationError, 401),
    (AuthorizationError, 403),
    (TopicNotFound, 404),
    (SubscriptionNotFound, 404),
    (IncompatibleSchema, 409),
    (ConsumerBusy, 409),
    (ProducerBusy, 409),
    (OperationNotSupported, 405),
    (NotAllowedError, 409),
    (MessageTooBig, 413),
    (ServiceUnitNotReady, 503),
    (AlreadyClosed, 503),
    (Timeout, 504),
    (InvalidTopicName, 412),
    (InvalidConfiguration, 412),
    (PulsarException, 500),
    (ValueError, 412),
    (TypeError, 412),
)


class Refusal(Exception):
    """A request is refused with a status, and words that name the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Mapped:
    """An error of the administration, with the status that this very call gives it."""

    error: type[Exception]
    status: int


def refused(reason: str, status: int) -> web.Response:
    """Return a refusal in Pulsar's form, which `pulsar-admin` prints."""
    return web.json_response({"reason": reason}, status=status)


def status_of(error: Exception) -> int:
    """Return the status that stands for an error."""
    if isinstance(error, Refusal):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def text_of(error: Exception) -> str:
    """Return an error's words, without the name of its class."""
    return error.text if isinstance(error, PulsarException) else str(error)


def own_pages_only(advertised: str, note: Callable[[web.Request, int], None]) -> Middleware:
    """Return the step that refuses what pages of other sites send through somebody's browser.

    `note` is told of each refusal. Programs send no Origin. Behind the loopback address no other name leads
    here but the one that a proxy has, which is `advertised`: so none can be made to (DNS rebinding).
    """

    outer = {advertised} - {""}

    @web.middleware
    async def look(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is not None and _authority(origin) not in {request.host, *outer}:
            note(request, 403)
            raise Refusal(403, f"Origin {origin[:200]}: requests of pages from elsewhere are refused")
        peer = request.transport.get_extra_info("sockname") if request.transport is not None else None
        is_known = request.host in outer or _is_here(request.host)
        if peer is not None and is_loopback(peer[0]) and not is_known:
            note(request, 403)
            raise Refusal(403, f"Host {request.host[:200]}: use 127.0.0.1 or localhost")
        return await handler(request)

    return look


def _authority(origin: str) -> str:
    """Return host and port of an Origin as a Host has them, "" for null."""
    return origin.partition("://")[2]


def _is_here(host: str) -> bool:
    try:
        name = URL.build(scheme="http", authority=host).host or ""
    except ValueError:
        return False
    return is_loopback(name)


@web.middleware
async def typed_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors with their status and reason."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return refused(refusal.reason, refusal.status)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        reason = {
            404: f"there is no {request.path}",
            405: f"{request.path} has no method {request.method}",
            413: f"the body is larger than {request.client_max_size} bytes",
        }.get(error.status, error.reason)
        return web.json_response({"reason": reason}, status=error.status, headers=_allow(error))
    except (PulsarException, ValueError, TypeError) as error:
        return refused(text_of(error), status_of(error))
    except web.RequestPayloadError as error:
        return refused(f"the body cannot be read: {error}", 400)
    except ConnectionError:
        # The other end has gone.
        raise
    except Exception:
        logger.exception("%s %s failed", request.method, request.rel_url.raw_path[:1000])
        return refused("something unexpected happened; the log of HTTP says what", 500)


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


async def body_of(request: web.Request, kind: type | tuple[type, ...], default: Any = ...) -> Any:
    """Return a JSON body of this kind, or `default` where the body is empty.

    Raises Refusal with 400 for what is no JSON or of another kind, and 415 for another content type.
    """
    raw = await request.read()
    if not raw.strip():
        if default is ...:
            raise Refusal(400, "the request needs a JSON body, and has none")
        return default
    if request.content_type != "application/json" and not request.content_type.endswith("+json"):
        raise Refusal(415, f"the body is {request.content_type}: send it as application/json")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, kind) or (isinstance(body, bool) and not _takes_flags(kind)):
        wanted = kind if isinstance(kind, tuple) else (kind,)
        raise Refusal(
            400, f"the body is {json.dumps(body)[:100]}: send {' or '.join(_WORDS[one] for one in wanted)}"
        )
    return body


_WORDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _takes_flags(kind: type | tuple[type, ...]) -> bool:
    return bool in (kind if isinstance(kind, tuple) else (kind,))


def flag_of(request: web.Request, name: str, default: bool = False) -> bool:
    """Return a flag of the query. Raises Refusal unless it is true or false."""
    value = request.query.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise Refusal(400, f"{name}={request.query[name][:100]}: give true or false")
    return value == "true"


def number_of(name: str, value: str, least: int = 0) -> int:
    """Return a number of the path or the query. Raises Refusal for anything else."""
    if not _NUMBER.fullmatch(value) or not least <= int(value) < 2**63:
        raise Refusal(400, f"{name}={value[:100]}: give a whole number from {least} to 2^63-1")
    return int(value)


def done() -> web.Response:
    """Return an answer without a body."""
    return web.Response(status=204)


def found(value: Any) -> web.Response:
    """Return a value as JSON.

    None is answered without a body, as Pulsar does for what is not set.
    """
    return web.Response(status=200) if value is None else web.json_response(value)


def nothing_like(what: str) -> Handler:
    """Return a handler that says that this broker has no such thing."""

    async def answer(request: web.Request) -> web.StreamResponse:
        raise Refusal(501, f"pulsar_ray has no {what}")

    return answer
