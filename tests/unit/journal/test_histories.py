from __future__ import annotations

import pytest

from tests.unit.journal.histories import run_many


@pytest.mark.parametrize("first", range(0, 60, 12))
def test_the_journal_keeps_its_promises_in_every_history(first: int) -> None:
    ran, found, totals = run_many(range(first, first + 12))
    assert not found
    assert ran == 12
    assert min(totals[what] for what in ("takeover", "restart", "move", "sealed", "confirmed")) > 0
