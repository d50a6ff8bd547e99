"""An endpoint that closes while its connection comes and goes."""

from __future__ import annotations

from pulsar_ray.client.endpoint.leaving import Leaving


def opened(leaving: Leaving) -> bool:
    with leaving.opening() as may_open:
        return may_open


def test_it_has_left_when_its_last_word_is_answered() -> None:
    leaving = Leaving()
    leaving.close_request(1, 7)
    assert leaving.has_left()
    assert not opened(leaving)


def test_an_open_behind_the_close_makes_it_close_again() -> None:
    leaving = Leaving()
    leaving.close_request(1, 7)
    assert opened(leaving)
    assert not leaving.has_left()
    assert opened(leaving)
    leaving.close_request(1, 7)
    assert leaving.has_left()


def test_what_is_said_again_after_an_open_counts() -> None:
    leaving = Leaving()
    for _ in range(3):
        leaving.close_request(1, 7)
        assert opened(leaving)
    leaving.close_request(1, 7)
    assert leaving.has_left()


def test_a_close_that_may_overtake_an_open_is_not_the_last_word() -> None:
    leaving = Leaving()
    with leaving.opening() as may_open:
        assert may_open
        leaving.close_request(1, 7)
        assert not leaving.has_left()
    assert not leaving.has_left()
    leaving.close_request(1, 7)
    assert leaving.has_left()


def test_what_was_refused_counts_for_nothing() -> None:
    leaving = Leaving()
    leaving.close_request(1, 7)
    assert leaving.has_left()
    assert not opened(leaving)
    assert leaving.has_left()
