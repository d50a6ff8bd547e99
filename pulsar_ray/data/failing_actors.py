"""Find actors that stand still or never end their work, which Ray does not notice."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from pulsar_ray.data.full_store import store_full
from pulsar_ray.errors import InvalidConfiguration, NotConnected, PulsarException, Timeout

ATTEMPTS = 3
"""How often a piece of work is done that its processes die of."""
LOOK_AFTER_S = 60.0
"""How long to wait for results before looking at the actors that owe them."""
ANSWER_WITHIN_S = 60.0
"""Longer than the start of an actor on a busy node."""
LIFE = "life"
"""The concurrency group of `is_alive`: long calls of others do not hold it up."""

_work_timeout_s = 600.0


def set_work_timeout(seconds: float) -> None:
    """Set how long one piece of a bulk read or write may take.

    A piece is some 32 MiB of a read, a task's rows of a write, a file of a landing; 600 s unless set. A
    process that takes longer (its disk does not answer) is replaced, twice; then Timeout is raised. Holds for
    this process of Python. Raises InvalidConfiguration unless it is above 0.
    """
    global _work_timeout_s  # noqa: PLW0603 - as long as the process, like its readers and publishers
    if not seconds > 0:
        raise InvalidConfiguration(f"a work timeout of {seconds!r} s: give more than 0")
    _work_timeout_s = float(seconds)


def work_timeout_s() -> float:
    """The timeout that `set_work_timeout` has set."""
    return _work_timeout_s


def with_sign_of_life(kind: type[Any]) -> Any:
    """Make an actor class of a plain class that has `is_alive`."""
    kind.is_alive = ray.method(concurrency_group=LIFE)(kind.is_alive)
    remote: Any = ray.remote
    return remote(concurrency_groups={LIFE: 1})(kind)


class AtWork:
    """An actor, and since when it has its present work in hand."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.since = time.monotonic()
        self.was_slow = False
        """Whether it was killed because its work took longer than it may."""


def look_after_s() -> float:
    """How long to wait for results at a time."""
    return min(LOOK_AFTER_S, _work_timeout_s)


def kill_stuck(at_work: Iterable[AtWork]) -> None:
    """Kill actors that do not answer, and those whose work takes too long.

    Ray then fails what they had in hand, or starts them again and repeats it, as for every death.
    """
    answers = {}
    for each in at_work:
        if time.monotonic() - each.since >= _work_timeout_s:
            each.was_slow = True
            each.since = time.monotonic()
            ray.kill(each.actor, no_restart=False)
        else:
            answers[each.actor.is_alive.remote()] = each.actor
    if not answers:
        return
    _, silent = ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_WITHIN_S)
    for answer in silent:
        ray.kill(answers[answer], no_restart=False)


def own_error(failed: RayError, work: str, remedy: str, *, was_slow: bool = False) -> Exception:
    """Return the error to raise for work that failed.

    It is the work's own, or tells that processes died of it, were too slow, or found Ray's store full.

    `work` says of a process which one it is ("that read ..."), `remedy` what to do.
    """
    if (full := store_full(failed, f"the process {work}", remedy)) is not None:
        return full
    if isinstance(failed, RayTaskError):
        cause: Any = failed.cause
        return cause if isinstance(cause, PulsarException | OSError) else failed
    if was_slow:
        return slow_error(work)
    died = str(failed).strip().splitlines()[0]
    return NotConnected(
        f"the process {work} died {ATTEMPTS} times ({died}): see its log in the Ray dashboard, above all for "
        f"want of memory, and {remedy}"
    )


def slow_error(work: str) -> Timeout:
    """Return the error of work that took too long each time."""
    return Timeout(
        f"the process {work} took longer than {_work_timeout_s:g} s for a piece of it, {ATTEMPTS} times: see "
        "whether the disk that has the data answers, or allow more by "
        "pulsar_ray.data.set_work_timeout(seconds)"
    )
