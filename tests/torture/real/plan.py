"""Strikes as data: which process of a real cluster is killed or stopped, when and for how long."""

from __future__ import annotations

import random
from typing import NamedTuple

KILL_ACTOR, STOP_ACTOR = "SIGKILL of an actor's process", "SIGSTOP of an actor's process"
KILL_WORKER = "SIGKILL of a worker process"
KILL_CLIENT, STOP_CLIENT = "SIGKILL of a client's process", "SIGSTOP of a client's process"
STOP_RAYLET, STOP_GCS = "SIGSTOP of the raylet", "SIGSTOP of the GCS"
KILL_RAYLET, KILL_GCS = "SIGKILL of the raylet", "SIGKILL of the GCS"
KILL_NODE = "SIGKILL of all processes of the node"

WEIGHTS: dict[str, int] = {
    KILL_ACTOR: 8,
    STOP_ACTOR: 5,
    KILL_WORKER: 3,
    KILL_CLIENT: 3,
    STOP_CLIENT: 4,
    STOP_RAYLET: 1,
    STOP_GCS: 1,
}
DEADLY = (KILL_RAYLET, KILL_GCS, KILL_NODE)
"""What ends a cluster of one node."""
KINDS = (*WEIGHTS, *DEADLY)
LONGEST_STOP_MS = 9_000
"""Longer than the lease of a round's sessions."""
LONGEST_END_MS = 6_000
"""How long the rest of the cluster goes on at most behind a deadly strike."""
MEAN_PAUSE_MS = 1_500


class Strike(NamedTuple):
    """`pick` chooses among the processes there are, modulo their number."""

    at_ms: int
    kind: str
    pick: int
    duration_ms: int


def deadly_of(seed: int) -> str:
    """The strike that ends the cluster in the round of a seed."""
    return DEADLY[seed % len(DEADLY)]


def seed_with(deadly: str, seed: int) -> int:
    """A seed near this one in whose round the cluster ends so."""
    return seed - seed % len(DEADLY) + DEADLY.index(deadly)


def plan_of(seed: int, duration_ms: int) -> list[Strike]:
    """The strikes of a round in their order, one of them deadly; the rest come before and behind that.

    `deadly_of` says which: seeds that follow each other have each of them in turn.
    """
    rng = random.Random(seed)
    strikes = []
    at_ms = rng.randrange(MEAN_PAUSE_MS)
    while at_ms < duration_ms:
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        strikes.append(Strike(at_ms, kind, rng.randrange(1 << 16), rng.randrange(200, LONGEST_STOP_MS)))
        at_ms += 1 + int(rng.expovariate(1 / MEAN_PAUSE_MS))
    at_ms = rng.randrange(duration_ms // 4, max(duration_ms // 4 + 1, duration_ms * 3 // 4))
    return sorted([*strikes, Strike(at_ms, deadly_of(seed), 0, rng.randrange(LONGEST_END_MS))])
