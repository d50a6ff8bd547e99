from __future__ import annotations

import asyncio
from typing import Any

from pulsar_ray.broker.partition.recovered import Recovered
from pulsar_ray.session.session_table import Session


class Answers:
    def __init__(self) -> None:
        self.recovered = Recovered()
        self.given: list[tuple[int, Any]] = []

    def ask(self, session: Session, endpoint: int, request: Any) -> None:
        self.recovered.when_durable(
            lambda asking, asked: self.given.append((asking.id, asked)), session, endpoint, request
        )


def test_requests_wait_in_their_order_until_all_is_durable_and_then_no_more() -> None:
    answers, first, second = Answers(), Session(1, "a", 0), Session(2, "b", 0)
    for number, session in enumerate((first, second, first)):
        answers.ask(session, number, f"r{number}")
    assert answers.given == []
    kept_awake = [answers.recovered.are_waiting]
    answers.recovered.are_durable()
    assert answers.given == [(1, "r0"), (2, "r1"), (1, "r2")]
    assert [*kept_awake, answers.recovered.are_waiting] == [True, False]
    answers.ask(second, 1, "later")
    assert answers.given[-1] == (2, "later")


def test_of_an_endpoint_the_last_request_is_answered_and_of_one_that_was_closed_none() -> None:
    answers, session = Answers(), Session(1, "a", 0)
    for request in ("old", "new"):
        answers.ask(session, 7, request)
    answers.ask(session, 8, "closed")
    answers.recovered.forget(session, 8)
    answers.recovered.are_durable()
    assert answers.given == [(1, "new")]


def test_a_session_that_has_ended_or_has_attached_again_is_not_answered() -> None:
    answers, ended, again = Answers(), Session(1, "a", 0), Session(2, "b", 0)
    answers.ask(ended, 1, "r")
    answers.ask(again, 1, "r")
    answers.recovered.forget(ended)
    assert answers.recovered.are_waiting, "the other one"
    again.attachment += 1
    answers.recovered.are_durable()
    assert answers.given == []


def test_calls_wait_too() -> None:
    async def run() -> None:
        recovered = Recovered()
        waiting = asyncio.ensure_future(recovered.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        recovered.are_durable()
        await waiting
        await recovered.wait()

    asyncio.run(run())
