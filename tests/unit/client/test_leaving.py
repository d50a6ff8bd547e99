"""An endpoint that closes while its connection comes and goes."""

from __future__ import annotations

from pulsar_ray.client.leaving import Leaving


def test_it_has_left_when_its_last_word_is_answered() -> None:
    leaving = Leaving()
    leaving.closing()
    assert leaving.has_left()
    assert not leaving.may_open()


def test_an_open_behind_the_close_makes_it_close_again() -> None:
    leaving = Leaving()
    leaving.closing()
    assert leaving.may_open()
    assert not leaving.has_left()
    assert leaving.may_open()
    leaving.closing()
    assert leaving.has_left()


def test_what_is_said_again_after_an_open_counts() -> None:
    leaving = Leaving()
    for _ in range(3):
        leaving.closing()
        assert leaving.may_open()
    leaving.closing()
    assert leaving.has_left()
