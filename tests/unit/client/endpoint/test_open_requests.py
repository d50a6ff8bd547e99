"""What becomes of an answer to a request to open again."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.endpoint.endpoint_link import PendingClose, ReopenRequest
from pulsar_ray.errors import (
    BrokerPersistenceError,
    DiskSpaceLow,
    ProducerFenced,
    PulsarException,
    ServiceUnitNotReady,
    SessionLost,
)
from pulsar_ray.session.requests import CloseEndpoint, Request
from tests.unit.client.answered_link import AnsweredLink


class Opener:
    """An endpoint that opens again at every `ask`."""

    def __init__(self, carrier: str | None = "first") -> None:
        self.link = AnsweredLink(carrier)
        self.opened: list[tuple[Any, Any]] = []
        self.refused: list[PulsarException] = []
        self.pending_close = PendingClose()
        self.asked = 0
        self.ask()

    def ask(self) -> None:
        self.asked += 1
        link: Any = self.link
        ReopenRequest(link, self._request, self.pending_close, self._opened, self.refused.append, self.ask)

    def _request(self, request_id: int) -> Request:
        return CloseEndpoint(request_id, 7)

    def _opened(self, answer: Any, carrier: Any) -> None:
        self.opened.append((answer, carrier))


def test_the_answer_is_handed_on_with_its_carrier() -> None:
    opener = Opener()
    opener.link.asked[0][1]("open", None)
    assert opener.opened == [("open", "first")]


def test_an_answer_behind_another_carrier_does_not_count() -> None:
    opener = Opener()
    opener.link.carrier = "second"
    opener.link.asked[0][1]("open", None)
    opener.link.carrier = None
    opener.link.asked[0][1](None, SessionLost("cut"))
    assert not opener.opened
    assert not opener.link.delayed


def test_a_final_refusal_counts_whatever_carried_it() -> None:
    opener = Opener()
    opener.link.carrier = "second"
    error = ProducerFenced("another one is open")
    opener.link.asked[0][1](None, error)
    assert opener.refused == [error]


@pytest.mark.parametrize(
    "error", [ServiceUnitNotReady("starting"), BrokerPersistenceError("refused"), DiskSpaceLow("full")]
)
def test_an_actor_that_could_not_just_now_is_asked_again_soon(error: PulsarException) -> None:
    opener = Opener()
    opener.link.asked[0][1](None, error)
    assert opener.asked == 1
    opener.link.delayed.pop()()
    assert opener.asked == 2
    opener.link.asked[1][1]("open", None)
    assert opener.opened == [("open", "first")]


def test_it_is_not_asked_again_over_a_carrier_that_is_gone() -> None:
    opener = Opener()
    opener.link.asked[0][1](None, ServiceUnitNotReady("starting"))
    opener.link.carrier = "second"
    opener.link.delayed.pop()()
    assert opener.asked == 1


def test_nothing_is_awaited_where_no_carrier_stands() -> None:
    opener = Opener(carrier=None)
    opener.link.asked[0][1](None, SessionLost("not attached"))
    assert not opener.link.delayed
