"""Repeats of harmless calls."""

from __future__ import annotations

import pytest

from pulsar_ray.errors import ConnectError, NotAllowedError, WrongNode
from pulsar_ray.transport.retry import until


def failing(*errors: Exception | None) -> list[float]:
    """Call through `until` something that raises these in turn; returns the seconds it was given."""
    given: list[float] = []
    outcomes = iter(errors)

    def call(left_s: float) -> None:
        given.append(left_s)
        if (error := next(outcomes)) is not None:
            raise error

    until(
        30.0,
        call,
        again=(ConnectError, WrongNode),
        was_done=lambda refused: isinstance(refused, NotAllowedError),
        first_pause_s=0.0,
        longest_pause_s=0.0,
    )
    return given


def test_a_call_is_repeated_until_it_succeeds() -> None:
    first, second, third = failing(ConnectError("a"), ConnectError("b"), None)
    assert 30.0 >= first >= second >= third > 0


def test_a_repeat_that_is_refused_because_the_first_was_carried_out_is_done() -> None:
    assert len(failing(ConnectError("a"), NotAllowedError("it is there"))) == 2


def test_a_first_refusal_and_a_node_that_is_away_are_raised() -> None:
    with pytest.raises(NotAllowedError):
        failing(NotAllowedError("it is there"))
    with pytest.raises(WrongNode):
        failing(WrongNode("away"))
