"""Requests are kept until they are answered, by whichever thread; the dispatcher is played here."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_ray.client.acks.partition_acks import UnansweredRequests
from pulsar_ray.errors import NotAllowedError, NotConnected, SessionLost, SubscriptionNotFound
from pulsar_ray.session.requests import CloseEndpoint
from tests.unit.client.answered_link import AnsweredLink

WAIT_S = 20.0


def opened() -> tuple[AnsweredLink, UnansweredRequests]:
    """The requests of an open consumer, and its link, which answers nothing by itself."""
    link: Any = AnsweredLink()
    requests = UnansweredRequests(link)
    requests.is_open = True
    return link, requests


def close(request_id: int) -> CloseEndpoint:
    return CloseEndpoint(request_id, 1)


def test_a_request_is_sent_if_the_consumer_is_open_and_kept_in_any_case() -> None:
    link, requests = opened()
    requests.is_open = False
    kept = requests.submit(close)
    assert not link.asked
    requests.is_open = True
    sent = requests.submit(close)
    assert len(link.asked) == 1
    assert requests.unanswered() == [kept, sent]


@pytest.mark.parametrize("loss", [SessionLost("cut"), NotConnected("no carrier")])
def test_a_loss_is_no_answer(loss: SessionLost) -> None:
    link, requests = opened()
    request = requests.submit(close)
    link.asked.pop()[1](None, loss)
    assert not request.answered.is_set()
    requests.send_all()
    assert len(link.asked) == 1


def test_a_dispatcher_that_stands_and_says_lost_is_asked_again() -> None:
    link, requests = opened()
    request = requests.submit(close)
    link.asked.pop()[1](None, SessionLost("not yet"))
    assert not link.asked, "not at once"
    link.delayed.pop()()
    link.asked.pop()[1]("done", None)
    assert request.answered.is_set()
    requests.submit(close)
    link.asked.pop()[1](None, SessionLost("not yet"))
    requests.is_open = False
    link.delayed.pop()()
    assert not link.asked, "it is sent when the consumer is open again"


def test_what_waits_to_be_asked_again_goes_before_what_must_come_behind() -> None:
    link, requests = opened()
    put_off, under_way = requests.submit(close), requests.submit(close)
    link.asked.pop(0)[1](None, SessionLost("not yet"))
    requests.repeat_at_once()
    assert len(link.asked) == 2, "the other one is under way, and goes once"
    link.asked.pop()[1]("done", None)
    assert (put_off.answered.is_set(), under_way.answered.is_set()) == (True, False)
    link.delayed.pop()()
    assert len(link.asked) == 1, "it was asked again already"


def test_a_new_attachment_asks_once_what_waited_to_be_asked_again() -> None:
    link, requests = opened()
    requests.submit(close)
    link.asked.pop()[1](None, SessionLost("not yet"))
    requests.send_all()
    link.delayed.pop()()
    assert len(link.asked) == 1


def test_an_answer_settles_a_request_once_whatever_comes_behind_it() -> None:
    link, requests = opened()
    done: list[str] = []
    request = requests.submit(close, lambda: done.append("carried out"))
    request.when_answered(lambda: done.append("called back"))
    requests.send_all()
    for _, reply in link.asked:
        reply("done", None)
    assert done == ["carried out", "called back"]
    assert not requests.unanswered()
    request.when_answered(lambda: done.append("at once"))
    assert done[2:] == ["at once"]


def test_a_refused_request_was_not_carried_out() -> None:
    link, requests = opened()
    request = requests.submit(close, lambda: pytest.fail("it was refused"))
    link.asked[0][1](None, NotAllowedError("no"))
    assert isinstance(request.error, NotAllowedError)
    assert not requests.unanswered()


def test_a_discarded_request_raises_its_error_and_a_forgotten_one_none() -> None:
    _, requests = opened()
    discarded = requests.submit(close)
    requests.discard(SubscriptionNotFound("deleted"))
    forgotten = requests.submit(close)
    requests.forget()
    assert not forgotten.answered.is_set(), "not under the consumer's lock"
    requests.end_forgotten()
    with pytest.raises(SubscriptionNotFound):
        requests.wait([discarded], 0.0)
    requests.wait([forgotten], 0.0)
    assert not requests.unanswered()


def test_an_answer_that_meets_a_seek_settles_the_request_once() -> None:
    link, requests = opened()
    carried_out = threading.Event()
    is_settling, may_settle = threading.Event(), threading.Event()
    ends: list[str] = []

    def slow() -> None:
        is_settling.set()
        assert may_settle.wait(WAIT_S)
        carried_out.set()

    request = requests.submit(close, slow)
    request.when_answered(lambda: ends.append("answered"))
    answering = threading.Thread(target=link.asked[0][1], args=("done", None))
    answering.start()
    assert is_settling.wait(WAIT_S)
    requests.forget()  # by a seek, while the answer is carried out
    requests.end_forgotten()
    assert not request.answered.is_set(), "a thread that waits goes on behind what is carried out"
    may_settle.set()
    answering.join(WAIT_S)
    assert carried_out.is_set()
    assert ends == ["answered"]


def test_threads_that_submit_while_others_repeat_lose_no_request() -> None:
    link, requests = opened()
    threads = [
        threading.Thread(target=lambda: [requests.submit(close) for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for _ in range(20):
        requests.send_all()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(requests.unanswered()) == 800
    for _, reply in list(link.asked):
        reply("done", None)
    assert not requests.unanswered()


def test_a_request_wakes_a_dispatcher_that_sleeps() -> None:
    link, requests = opened()
    link.is_parked = True
    requests.is_open = False
    requests.submit(close)
    assert link.is_woken
