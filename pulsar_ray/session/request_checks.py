"""Checking requests to an actor as a whole, before anything is done with them."""

from __future__ import annotations

from typing import Any, get_type_hints

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.field_checks import NUMBER_END, Check
from pulsar_ray.session.requests import (
    Acknowledge,
    Call,
    CloseEndpoint,
    Credit,
    Follow,
    Leave,
    MoveHold,
    NegativeAcknowledge,
    OpenConsumer,
    OpenProducer,
    Ping,
    Publish,
    RedeliverUnacknowledged,
    Request,
    Unreadable,
)


def check_request(request: Request) -> None:
    """Raise ProtocolError for a request that actors do not take.

    Or one whose fields hold what they cannot.

    A request that is refused has changed nothing.
    """
    kind = type(request)
    plain = _PLAIN.get(kind)
    if plain is not None:
        types, places = plain
        if tuple(map(type, request)) != types:
            wrong = [type(value) is not wanted for value, wanted in zip(request, types, strict=True)]
            raise _refusal(request, wrong.index(True))
        for place in places:
            if not -1 <= request[place] < NUMBER_END:  # type: ignore[operator]
                raise _refusal(request, place)
        return
    checks = _CHECKS.get(kind)
    if checks is None:
        raise ProtocolError(f"{kind.__name__} is no request to an actor")
    for place, (check, value) in enumerate(zip(checks, request, strict=True)):
        if not check(value):
            raise _refusal(request, place)


def _refusal(request: Request, place: int) -> ProtocolError:
    name, value = request._fields[place], request[place]
    return ProtocolError(f"{type(request).__name__}: {name} cannot be {value!r:.100}")


def _plain(kind: type[Any]) -> tuple[tuple[type[Any], ...], tuple[int, ...]]:
    """The declared types of the fields, and the places of the numbers among them."""
    types = tuple(get_type_hints(kind).values())
    return types, tuple(place for place, declared in enumerate(types) if declared is int)


def _checks_of(kind: type[Any]) -> tuple[Check, ...]:
    """The checks that the fields are declared with."""
    return tuple(hint.__metadata__[0] for hint in get_type_hints(kind, include_extras=True).values())


# The types, and one range for all numbers, say enough of the frequent ones.
_PLAIN: dict[type[Any], tuple[tuple[type[Any], ...], tuple[int, ...]]] = {
    kind: _plain(kind)
    for kind in (Publish, Credit, Ping, CloseEndpoint, RedeliverUnacknowledged, Unreadable, Follow)
}
_CHECKS: dict[type[Any], tuple[Check, ...]] = {
    kind: _checks_of(kind)
    for kind in (OpenProducer, MoveHold, OpenConsumer, Acknowledge, NegativeAcknowledge, Call, Leave)
}
