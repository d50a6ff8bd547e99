"""Tasks of the journal are generators that yield requests and get answers.

A task waits for nothing itself, and starts nothing: who runs it carries the requests out.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")
Task = Generator["Request", Any, T]


class _Unknown:
    """The answer to a request whose fate is not known."""


UNKNOWN: Final = _Unknown()
CREATED: Final = "created"
EXISTS: Final = "exists"


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
    """Delete objects, in the background: nothing depends on when that is done."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Go on after some seconds."""

    seconds: float


@dataclass(frozen=True)
class SyncDirectory:
    """Go on when what was installed of a partition is synced here."""

    partition: str


Request = Get | ListKeys | Create | Delete | Wait | SyncDirectory


@dataclass
class Backoff:
    """How long to wait before the next try: it doubles, up to a bound."""

    first_seconds: float = 0.1
    most_seconds: float = 5.0
    tries: int = 0

    def next_seconds(self) -> float:
        """Count a try that failed, and return what to wait."""
        self.tries += 1
        return float(min(self.most_seconds, self.first_seconds * 2 ** min(self.tries - 1, 16)))


def ask(request: Request) -> Task[Any]:
    """Repeat a request until its fate is known."""
    backoff = Backoff()
    while True:
        answer = yield request
        if answer is not UNKNOWN:
            return answer
        yield Wait(backoff.next_seconds())
