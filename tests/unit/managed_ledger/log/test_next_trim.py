"""When a log that sleeps will have something to delete."""

from __future__ import annotations

import pytest

from pulsar_ray.managed_ledger.log.ledger_policies import Retention, ledgers_to_trim, next_trim_ms
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Lease
from pulsar_ray.model.message_id import Position

MINUTE = 60_000


def ledger(number: int, closed_ms: int, size_bytes: int = 100) -> LedgerInfo:
    return LedgerInfo(number, closed_ms - 10, last_entry_id=9, size_bytes=size_bytes, closed_ms=closed_ms)


LEDGERS = [ledger(1, 1000), ledger(2, 5000)]


@pytest.mark.parametrize(
    ("holds", "leases", "retention", "due_ms"),
    [
        ([], [], Retention(MINUTE, -1), 1000 + MINUTE + 1),
        ([], [], Retention(0, 0), 0),
        ([], [], Retention(-1, -1), None),
        ([], [], Retention(-1, 1000), None),
        ([], [], Retention(-1, 50), 0),
        ([Position(1, 8)], [], Retention(MINUTE, -1), None),
        ([Position(1, 9)], [], Retention(MINUTE, -1), 1000 + MINUTE + 1),
        ([Position(2, 9), Position(1, 3)], [], Retention(MINUTE, -1), None),
        ([], [Lease(1, 1, 2, 90_000)], Retention(MINUTE, -1), 90_000),
        ([], [Lease(1, 2, 2, 90_000)], Retention(MINUTE, -1), 1000 + MINUTE + 1),
        ([], [Lease(1, 1, 1, 90_000)], Retention(0, 0), 90_000),
    ],
)
def test_when_the_first_ledger_may_go(
    holds: list[Position], leases: list[Lease], retention: Retention, due_ms: int | None
) -> None:
    assert next_trim_ms(LEDGERS, holds, leases, retention) == due_ms
    if due_ms is not None:
        # Exactly then trimming has something to do.
        assert ledgers_to_trim(LEDGERS, 0, holds, leases, retention, max(due_ms, 5001))
    if due_ms:
        assert not ledgers_to_trim(LEDGERS[:1], 0, holds, leases, retention, due_ms - 1)


def test_an_empty_log_is_never_due() -> None:
    assert next_trim_ms([], [], [], Retention(0, 0)) is None
