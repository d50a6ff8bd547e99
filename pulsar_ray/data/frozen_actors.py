"""Find actors whose processes stand still, which Ray does not notice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray

LOOK_AFTER_S = 60.0
"""How long to wait for results before looking whether the actors that owe them answer."""
ANSWER_WITHIN_S = 60.0
"""Longer than the start of an actor on a busy node."""
LIFE = "life"
"""The concurrency group of `is_alive`: long calls of others do not hold it up."""


def with_sign_of_life(kind: type[Any]) -> Any:
    """Make an actor class of a plain class that has `is_alive`."""
    kind.is_alive = ray.method(concurrency_group=LIFE)(kind.is_alive)
    remote: Any = ray.remote
    return remote(concurrency_groups={LIFE: 1})(kind)


def kill_frozen(actors: Iterable[Any]) -> int:
    """Kill actors that do not answer, and return their number.

    Ray then fails what they had in hand, or starts them again and repeats it, as for every death.
    """
    answers = {actor.is_alive.remote(): actor for actor in actors}
    _, silent = ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_WITHIN_S)
    for answer in silent:
        ray.kill(answers[answer], no_restart=False)
    return len(silent)
