"""What happens to nodes, partitions and the object store, drawn from a seed like other faults."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from tests.torture import plan
from tests.torture.plan import Fault

LOSE_NODE, LOSE_CATALOG = "loss of a node with its disk", "loss of the catalog's node with its disk"
LOSE_ALL, CUT_OFF = "loss of all nodes with their disks", "node cut off and taken for lost"
COME_BACK, KILL_STORE = "loss of a node that comes back", "SIGKILL of a store"
MOVE, DRAIN, BALANCE = "move of a topic", "drain of a node", "balance"
REST, RESTED = "drain of a node until its store rests", "a store that rests"
OFFLOAD, FETCH_BACK = "offload of a topic", "topic brought back from the object store"
AWAY, SLOW = "object store away", "slow object store"
LOST_WRITES, LATE_WRITES = "lost answers of the object store", "late writes of the object store"
BUCKET_FAULTS = (AWAY, SLOW, LOST_WRITES, LATE_WRITES)

WEIGHTS: dict[str, int] = {
    LOSE_NODE: 5,
    LOSE_CATALOG: 2,
    LOSE_ALL: 1,
    CUT_OFF: 4,
    COME_BACK: 5,
    KILL_STORE: 6,
    MOVE: 14,
    DRAIN: 3,
    REST: 4,
    BALANCE: 3,
    OFFLOAD: 8,
    FETCH_BACK: 5,
    AWAY: 3,
    SLOW: 2,
    LOST_WRITES: 4,
    LATE_WRITES: 4,
}
MEAN_PAUSE_MS = 450
LONGEST_MS = 5_000
OF_ACTORS = (
    plan.KILL, plan.STOP, plan.SLEEP, plan.CUT, plan.LOSE_REQUEST, plan.LOSE_ANSWER, plan.SILENCE,
    plan.LOSE_CONTROLLER_ANSWER, plan.KILL_CONTROLLER, plan.CLOCK_FORWARD, plan.CLOCK_BACK,
)  # fmt: skip
"""What else happens in these rounds; a restart of everything is what they have instead."""
SLOWER = 3
"""So much seldomer than in other rounds: there is more to come to rest after."""


class NodeFault(NamedTuple):
    """`which` chooses the node, and `topic` the topic, modulo how many there are then."""

    at_ms: int
    kind: str
    which: int
    topic: int
    duration_ms: int


def plan_of(seed: int, duration_ms: int, kinds: Collection[str] = ()) -> list[NodeFault]:
    """The faults of nodes in a round; `kinds` leaves out all others without moving these."""
    rng = random.Random(seed)
    faults: list[NodeFault] = []
    at_ms = rng.randrange(MEAN_PAUSE_MS)
    while at_ms < duration_ms:
        (kind,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        faults.append(
            NodeFault(
                at_ms, kind, rng.randrange(1 << 16), rng.randrange(1 << 16), rng.randrange(50, LONGEST_MS)
            )
        )
        at_ms += 1 + int(rng.expovariate(1 / MEAN_PAUSE_MS))
    return [fault for fault in faults if not kinds or fault.kind in kinds]


def faults_beside(seed: int, duration_ms: int, mean_pause_ms: int, kinds: Collection[str]) -> list[Fault]:
    """What hits actors and lanes in such a round."""
    wanted = [kind for kind in OF_ACTORS if not kinds or kind in kinds]
    return plan.plan_of(seed, duration_ms, mean_pause_ms * SLOWER, wanted) if wanted else []
