"""An endpoint that closes while its connection comes and goes."""

from __future__ import annotations

from pulsar_ray.client.endpoint.endpoint_link import ClosingEndpoint, PendingClose
from pulsar_ray.errors import SessionLost
from pulsar_ray.session.requests import CloseEndpoint
from tests.unit.client.producer.publishing_link import PublishingLink


def opened(pending_close: PendingClose) -> bool:
    with pending_close.opening() as may_open:
        return may_open


def test_it_has_left_when_its_last_word_is_answered() -> None:
    pending_close = PendingClose()
    pending_close.close_request(1, 7)
    assert pending_close.is_confirmed()
    assert not opened(pending_close)


def test_an_open_behind_the_close_makes_it_close_again() -> None:
    pending_close = PendingClose()
    pending_close.close_request(1, 7)
    assert opened(pending_close)
    assert not pending_close.is_confirmed()
    assert opened(pending_close)
    pending_close.close_request(1, 7)
    assert pending_close.is_confirmed()


def test_what_is_said_again_after_an_open_counts() -> None:
    pending_close = PendingClose()
    for _ in range(3):
        pending_close.close_request(1, 7)
        assert opened(pending_close)
    pending_close.close_request(1, 7)
    assert pending_close.is_confirmed()


def test_a_close_that_may_overtake_an_open_is_not_the_last_word() -> None:
    pending_close = PendingClose()
    with pending_close.opening() as may_open:
        assert may_open
        pending_close.close_request(1, 7)
        assert not pending_close.is_confirmed()
    assert not pending_close.is_confirmed()
    pending_close.close_request(1, 7)
    assert pending_close.is_confirmed()


def test_what_was_refused_counts_for_nothing() -> None:
    pending_close = PendingClose()
    pending_close.close_request(1, 7)
    assert pending_close.is_confirmed()
    assert not opened(pending_close)
    assert pending_close.is_confirmed()


def test_asleep_it_leaves_without_a_word() -> None:
    link = PublishingLink()
    link.is_parked = True
    pending_close = PendingClose()
    assert opened(pending_close)
    assert pending_close.leave_asleep(link)
    assert not opened(pending_close)


def test_it_does_not_leave_in_silence_where_it_is_or_may_come_to_be_open() -> None:
    link = PublishingLink()
    pending_close = PendingClose()
    assert not pending_close.leave_asleep(link)
    link.is_parked = True
    with pending_close.opening():
        assert not pending_close.leave_asleep(link)


def test_a_close_that_a_standing_actor_could_not_carry_out_is_asked_for_again() -> None:
    link = PublishingLink()
    link.carrier = "first"
    pending_close = PendingClose()
    assert opened(pending_close)
    closing = ClosingEndpoint(link, 7, pending_close)
    (request, reply) = link.asked.pop()
    assert isinstance(request, CloseEndpoint)
    reply(None, SessionLost("it cannot say where its log ends"))
    assert not link.asked, "not at once"
    link.manual_timers.run()
    link.asked.pop()[1](True, None)
    assert closing.wait(0.0)
    link.manual_timers.run()
    assert not link.asked
