"""Faults as data: what happens when, to whom and for how long, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from tests.torture.catalog_disk import CATALOG_FAULTS
from tests.torture.disk import DISK_FAULTS, TORN

KILL, STOP, SLEEP, KILL_ALL, RESTART = "SIGKILL", "SIGSTOP", "sleep", "SIGKILL of all", "restart of all"
CUT, LOSE_REQUEST, LOSE_ANSWER, SILENCE = "cut lane", "lost request", "lost answer", "silent lane"
CLOCK_FORWARD, CLOCK_BACK = "clock forward", "clock back"
LOSE_CONTROLLER_ANSWER = "lost answer of the controller"
KILL_CONTROLLER = "SIGKILL of the controller"
DISPATCHERS_SLEEP = "sleep of dispatchers alone"
LONG_STOP = "SIGSTOP, longer than a lease,"
PARTITION, DISPATCHER, TRACKER = "partition", "dispatcher", "tracker"

WEIGHTS: dict[str, int] = {
    KILL: 14,
    STOP: 8,
    LONG_STOP: 1,
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
    KILL_CONTROLLER: 3,
    **dict.fromkeys(DISK_FAULTS, 4),
    **dict.fromkeys(CATALOG_FAULTS, 2),
}
WHOLE = (
    KILL_ALL, RESTART, CLOCK_FORWARD, CLOCK_BACK, LOSE_CONTROLLER_ANSWER, KILL_CONTROLLER, *CATALOG_FAULTS,
)  # fmt: skip
"""What hits everything."""
OF_AN_ACTOR = (KILL, STOP, LONG_STOP, CUT, *DISK_FAULTS)
"""What is counted by the actor that it hits."""
LEASE_S = 6.0
"""Of the sessions of a round."""
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
    has_tracker = kind in (KILL, STOP, LONG_STOP, *DISK_FAULTS) and kind != TORN
    actor = rng.choices((PARTITION, DISPATCHER, TRACKER), (4, 4, 1 if has_tracker else 0))[0]
    amount = rng.randrange(LONGEST_JUMP_MS) if kind in (CLOCK_FORWARD, CLOCK_BACK) else rng.randrange(3_000)
    duration_ms = rng.randrange(50, LONGEST_MS)
    if kind == LONG_STOP:
        duration_ms += int(LEASE_S * 1000)
    return Fault(at_ms, kind, actor, *place, duration_ms, amount)


def counted_kinds() -> set[str]:
    """Every kind of fault of a round in this process, as a round's summary counts it."""
    names = set(WEIGHTS) - set(OF_AN_ACTOR)
    for kind in OF_AN_ACTOR:
        names |= {name_of(kind, actor) for actor in (PARTITION, DISPATCHER)}
        if kind not in (TORN, CUT):
            names.add(name_of(kind, TRACKER))
    return names


def name_of(kind: str, actor: str) -> str:
    """A fault's name in summaries."""
    return f"{kind} of a {actor}" if kind in OF_AN_ACTOR else kind
