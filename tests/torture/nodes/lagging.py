"""Rounds where receipts do not wait for the object store: what they may lose, and what they may not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.faults.history.checker import SUFFIX, Violation
from tests.faults.history.operations import SendOk, Stored, operation_of
from tests.faults.history.rules import RULES
from tests.faults.journal import iterate_journal
from tests.torture import plan
from tests.torture.nodes.plan import (
    BUCKET_FAULTS,
    DRAIN,
    FETCH_BACK,
    KILL_STORE,
    LOSE_ALL,
    MOVE,
    OFFLOAD,
    NodeFault,
    plan_of,
)

LAG_S = 3
SLACK_S = 3.0
"""Receipts are given a moment after it was decided that they may, later on a busy machine."""
LOST_AT = 0.8
KINDS = (*BUCKET_FAULTS, MOVE, DRAIN, OFFLOAD, FETCH_BACK, KILL_STORE)
BESIDE = (plan.CUT, plan.LOSE_REQUEST, plan.LOSE_ANSWER, plan.SILENCE, plan.KILL_CONTROLLER)
"""A partition that starts again counts its lag anew, so none is killed."""
SCENES = ("every-type", "keyed", "delayed", "chunks", "expiring", "sleepy")
SETTINGS = {"remote_durability": "async", "remote_lag_seconds": LAG_S, "node_loss_seconds": 0}
KEPT = (
    "messages of the log that nobody sent",
    "messages in the log although their sending was refused",
    "messages stored more than once",
    "messages whose bytes changed on their way into the log",
    "messages of a producer out of order in the log",
    "keys whose messages are in several partitions",
    "messages that a subscription gave to nobody",
    "deliveries of other bytes than the log has",
    "messages that came to a consumer out of their partition's order",
    "messages that came to a consumer out of their key's order",
    "reads with a gap, or out of order",
    "confirmed changes of the catalog that are not there",
    "values of the catalog that nobody set",
)
"""Rules that hold all the same."""
assert set(KEPT) <= set(RULES)


def lagging_plan(seed: int, duration_ms: int, kinds: Collection[str]) -> list[NodeFault]:
    """Faults that lose nothing, and then the loss of all nodes with their disks."""
    faults = plan_of(seed, duration_ms, [kind for kind in KINDS if not kinds or kind in kinds])
    end_ms = int(duration_ms * LOST_AT)
    return [*(fault for fault in faults if fault.at_ms < end_ms), NodeFault(end_ms, LOSE_ALL, 0, 0, 0)]


def is_kept(violation: Violation) -> bool:
    """Whether a rule was broken that holds here, too."""
    return violation.rule in KEPT


def beyond_the_lag(history: Path) -> list[str]:
    """Name partitions that lost more than what was confirmed in the time of the lag.

    A partition loses an end of what was confirmed, and nothing before what it kept.
    """
    stored, confirmed = _read(history)
    wrong = []
    for (topic, partition), receipts in confirmed.items():
        log = stored[topic]
        lost = [(at_ns, place) for at_ns, place, message in receipts if message not in log]
        if not lost:
            continue
        span_s = (max(lost)[0] - min(lost)[0]) / 1e9
        if span_s > LAG_S + SLACK_S:
            wrong.append(
                f"{topic} {partition}: lost what was confirmed in {span_s:.1f} s, of {LAG_S} allowed"
            )
        first_lost = min(place for _, place in lost)
        behind = [place for _, place, message in receipts if message in log and place > first_lost]
        if same := [place for place in behind if place[0] == first_lost[0]]:
            wrong.append(f"{topic} {partition}: lost {first_lost}, and kept {same[0]} of the same ledger")
    return wrong


Place = tuple[int, int, int]


def _read(
    history: Path,
) -> tuple[
    dict[str, set[tuple[str, int]]], dict[tuple[str, int], Sequence[tuple[int, Place, tuple[str, int]]]]
]:
    """The messages of each topic's log, and receipts with their times by partition."""
    stored: dict[str, set[tuple[str, int]]] = defaultdict(set)
    confirmed: dict[tuple[str, int], list[tuple[int, Place, tuple[str, int]]]] = defaultdict(list)
    for path in sorted(history.glob(f"*{SUFFIX}")):
        for record in iterate_journal(path):
            operation = operation_of(record)
            if isinstance(operation, Stored):
                stored[operation.topic].add((operation.producer, operation.number))
            elif isinstance(operation, SendOk) and operation.place is not None:
                partition, ledger, entry, batch = operation.place
                message = operation.producer, operation.number
                confirmed[operation.topic, partition].append((record.at_ns, (ledger, entry, batch), message))
    return stored, dict(confirmed)
