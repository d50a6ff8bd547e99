"""Ledger ends against a plain list of entries."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.managed_ledger.cursor.managed_cursor import LedgerSpans
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position


@pytest.mark.parametrize("seed", range(20))
def test_spans_agree_with_a_list_of_entries(seed: int) -> None:
    rng = random.Random(seed)
    ids = sorted(rng.sample(range(1, 40), rng.randint(0, 6)))
    lasts = {ledger: rng.randint(-1, 5) for ledger in ids}
    spans = LedgerSpans(list(lasts.items()))
    for _ in range(30):
        entries = [Position(ledger, e) for ledger in sorted(lasts) for e in range(lasts[ledger] + 1)]
        assert spans.count() == len(entries)
        assert spans.end == (entries[-1] if entries else EARLIEST)
        for position in [EARLIEST, LATEST, Position(rng.randint(0, 41), rng.randint(-1, 7)), *entries]:
            assert spans.count_up_to(position) == sum(e <= position for e in entries)
            assert spans.after(position) == min((e for e in entries if e > position), default=None)
            assert spans.last_entry_of(position.ledger_id) == lasts.get(position.ledger_id, -1)
        assert [spans.position_of(i) for i in range(-1, len(entries) + 1)] == [None, *entries, None]
        grown = Position(rng.randint(1, 41), rng.randint(0, 6))
        spans.extend(*grown)
        lasts[grown.ledger_id] = max(lasts.get(grown.ledger_id, -1), grown.entry_id)


def test_ledgers_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="ascending"):
        LedgerSpans([(3, 1), (2, 1)])
