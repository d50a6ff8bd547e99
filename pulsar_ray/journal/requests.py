"""Tasks of the journal are generators that yield requests and get answers.

A task waits for nothing itself, and starts nothing: who runs it carries the requests out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pulsar_ray.clock import growing_pauses_s

T = TypeVar("T")
Task = Generator["Request", Any, T]


class _Unknown:
    """The answer to a request whose fate is not known."""


UNKNOWN: Final = _Unknown()
CREATED: Final = "created"
EXISTS: Final = "exists"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_TURN_SECONDS = 0.05


@dataclass(frozen=True)
class Get:
    """Read an object; the answer is its bytes, or None."""

    key: str


@dataclass(frozen=True)
class ListKeys:
    """Name the objects below a prefix; the answer is sorted."""

    prefix: str


@dataclass(frozen=True)
class Create:
    """Write an object if there is none; the answer is `CREATED` or `EXISTS`."""

    key: str
    body: bytes


@dataclass(frozen=True)
class Delete:
    """Delete objects, in the background unless it is awaited; the answer says nothing then."""

    keys: tuple[str, ...]
    is_awaited: bool = False


@dataclass(frozen=True)
class Wait:
    """Go on after some seconds."""

    seconds: float


@dataclass(frozen=True)
class Shipped:
    """Go on when everything up to a turn of this life is in the prefix."""

    turn: int


Request = Get | ListKeys | Create | Delete | Wait | Shipped


def pauses_s() -> Iterator[float]:
    """Return the pauses between the tries of a request."""
    return growing_pauses_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)


def ask(request: Request) -> Task[Any]:
    """Repeat a request until its fate is known."""
    pauses = pauses_s()
    while True:
        answer = yield request
        if answer is not UNKNOWN:
            return answer
        yield Wait(next(pauses))


def until(is_so: Callable[[], bool]) -> Task[None]:
    """Wait for what another task of the same life brings about."""
    while not is_so():
        yield Wait(_TURN_SECONDS)
