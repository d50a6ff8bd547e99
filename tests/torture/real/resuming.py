"""Where a producer that keeps its name goes on, from the journals of those before it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.history.operations import SendInvoked, SendOk, operation_of
from tests.faults.journal import read_journal
from tests.torture.clients import Producing


def go_on(producing: Producing, history: Path) -> None:
    """Let it send again what its predecessors sent and were not told of, if it keeps their name."""
    if not producing.plan.keeps_name:
        return
    invoked: set[int] = set()
    confirmed: set[int] = set()
    own = re.compile(re.escape(producing.name) + r"-\d+\.journal")
    for path in history.glob(f"{producing.name}-*.journal"):
        if own.fullmatch(path.name) is None:
            continue
        for record in read_journal(path):
            operation = operation_of(record)
            if isinstance(operation, SendInvoked):
                invoked.add(operation.number)
            elif isinstance(operation, SendOk):
                confirmed.add(operation.number)
    producing.resume(max(invoked, default=-1) + 1, invoked - confirmed)
