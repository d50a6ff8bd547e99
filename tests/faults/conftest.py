"""One Ray with one broker per module of fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.broker import Broker

LEASE_S = 10.0
SMALL_LEDGER_ENTRIES = 400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that keeps every message, rolls its ledgers over often and gives up silent clients soon."""
    started = Broker(
        tmp_path_factory.mktemp("broker"),
        session_lease_seconds=LEASE_S,
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
        managed_ledger_max_entries_per_ledger=SMALL_LEDGER_ENTRIES,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    try:
        yield started
    finally:
        started.close()
