"""Faults as data: what happens when, to whom and for how long, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from tests.torture.disk import DISK_FAULTS, TORN

KILL, STOP, SLEEP, KILL_ALL, RESTART = "SIGKILL", "SIGSTOP", "sleep", "SIGKILL of all", "restart of all"
CUT, LOSE_REQUEST, LOSE_ANSWER, SILENCE = "cut lane", "lost request", "lost answer", "silent lane"
CLOCK_FORWARD, CLOCK_BACK = "clock forward", "clock back"
LOSE_CONTROLLER_ANSWER = "lost answer of the controller"
PARTITION, DISPATCHER, TRACKER = "partition", "dispatcher", "tracker"

WEIGHTS: dict[str, int] = {
    KILL: 14,
    STOP: 8,
    SLEEP: 10,
    KILL_ALL: 1,
    RESTART: 1,
    CUT: 6,
    LOSE_REQUEST: 4,
    LOSE_ANSWER: 4,
    SILENCE: 4,
    CLOCK_FORWARD: 2,
    CLOCK_BACK: 2,
    LOSE_CONTROLLER_ANSWER: 2,
    **dict.fromkeys(DISK_FAULTS, 4),
}
WHOLE = (KILL_ALL, RESTART, CLOCK_FORWARD, CLOCK_BACK, LOSE_CONTROLLER_ANSWER)
"""What hits everything."""
LONGEST_MS = 2_500
LONGEST_JUMP_MS = 90_000
TOGETHER_MS = 40


class Fault(NamedTuple):
    """`topic` and `subscription` are indexes into those of the round, modulo their number."""

    at_ms: int
    kind: str
    actor: str
    topic: int
    subscription: int
    duration_ms: int
    amount: int
    """Of bytes before a cut, or milliseconds of a jump."""


def plan_of(seed: int, duration_ms: int, mean_pause_ms: int, kinds: Collection[str] = ()) -> list[Fault]:
    """The faults of a round in their order; often several hit the same place at nearly the same moment.

    `kinds` leaves out all others without moving these.
    """
    rng = random.Random(seed)
    faults: list[Fault] = []
    at_ms = rng.randrange(mean_pause_ms)
    while at_ms < duration_ms:
        place = (rng.randrange(1 << 16), rng.randrange(1 << 16))
        together = rng.choice((1, 1, 2, 3))
        faults += [_fault(rng, at_ms + rng.randrange(TOGETHER_MS), place) for _ in range(together)]
        at_ms += 1 + int(rng.expovariate(1 / mean_pause_ms))
    return sorted(fault for fault in faults if not kinds or fault.kind in kinds)


def _fault(rng: random.Random, at_ms: int, place: tuple[int, int]) -> Fault:
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    actor = rng.choices((PARTITION, DISPATCHER, TRACKER), (4, 4, 1 if kind in (KILL, STOP) else 0))[0]
    if kind == TORN:
        actor = PARTITION if actor == TRACKER else actor
    amount = rng.randrange(LONGEST_JUMP_MS) if kind in (CLOCK_FORWARD, CLOCK_BACK) else rng.randrange(3_000)
    return Fault(at_ms, kind, actor, *place, rng.randrange(50, LONGEST_MS), amount)
