"""What becomes of an answer to a request to open again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_ray.client.reopening import Reopening
from pulsar_ray.errors import ProducerFenced, PulsarException, ServiceUnitNotReady, SessionLost
from pulsar_ray.session.requests import CloseEndpoint, Request


class Link:
    """A link whose requests and timers the test ends; it is its own timers."""

    def __init__(self, carrier: Any) -> None:
        self.carrier = carrier
        self.timers = self
        self.replies: list[Callable[[Any, PulsarException | None], None]] = []
        self.delayed: list[Callable[[], None]] = []

    def request_async(
        self, build: Callable[[int], Request], reply: Callable[[Any, PulsarException | None], None]
    ) -> None:
        build(1)
        self.replies.append(reply)

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.delayed.append(callback)


class Opener:
    """An endpoint that opens again at every `ask`."""

    def __init__(self, carrier: Any = "first") -> None:
        link: Any = Link(carrier)
        self.link = link
        self.opened: list[tuple[Any, Any]] = []
        self.refused: list[PulsarException] = []
        self.asked = 0
        self.ask()

    def ask(self) -> None:
        self.asked += 1
        Reopening(self.link, self._request, self._opened, self.refused.append, self.ask)

    def _request(self, request_id: int) -> Request:
        return CloseEndpoint(request_id, 7)

    def _opened(self, answer: Any, carrier: Any) -> None:
        self.opened.append((answer, carrier))


def test_the_answer_is_handed_on_with_its_carrier() -> None:
    opener = Opener()
    opener.link.replies[0]("open", None)
    assert opener.opened == [("open", "first")]


def test_an_answer_behind_another_carrier_does_not_count() -> None:
    opener = Opener()
    opener.link.carrier = "second"
    opener.link.replies[0]("open", None)
    opener.link.carrier = None
    opener.link.replies[0](None, SessionLost("cut"))
    assert not opener.opened
    assert not opener.link.delayed


def test_a_final_refusal_counts_whatever_carried_it() -> None:
    opener = Opener()
    opener.link.carrier = "second"
    error = ProducerFenced("another one is open")
    opener.link.replies[0](None, error)
    assert opener.refused == [error]


def test_an_actor_that_could_not_just_now_is_asked_again_soon() -> None:
    opener = Opener()
    opener.link.replies[0](None, ServiceUnitNotReady("starting"))
    assert opener.asked == 1
    opener.link.delayed.pop()()
    assert opener.asked == 2
    opener.link.replies[1]("open", None)
    assert opener.opened == [("open", "first")]


def test_it_is_not_asked_again_over_a_carrier_that_is_gone() -> None:
    opener = Opener()
    opener.link.replies[0](None, ServiceUnitNotReady("starting"))
    opener.link.carrier = "second"
    opener.link.delayed.pop()()
    assert opener.asked == 1


def test_nothing_is_awaited_where_no_carrier_stands() -> None:
    opener = Opener(carrier=None)
    opener.link.replies[0](None, SessionLost("not attached"))
    assert not opener.link.delayed
