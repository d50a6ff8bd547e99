"""Redelivery counts against a dictionary of entries."""

from __future__ import annotations

import itertools
import random

import pytest

from pulsar_ray.managed_ledger.cursor.redelivery_counts import RedeliveryCounts
from pulsar_ray.model.message_id import Position


@pytest.mark.parametrize("seed", range(20))
def test_counts_agree_with_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    counts = RedeliveryCounts()
    naive: dict[tuple[int, int], int] = {}
    for _ in range(200):
        ledger, first = rng.randint(1, 3), rng.randrange(30)
        last = first + rng.randrange(6)
        touched = [(ledger, entry) for entry in range(first, last + 1)]
        step = rng.choice(["set", "set", "discard", "up to"])
        if step == "set":
            count = rng.randrange(4)
            counts.set(ledger, first, last, count)
            naive.update(dict.fromkeys(touched, count))
        elif step == "discard":
            counts.discard(ledger, first, last)
            naive = {entry: c for entry, c in naive.items() if entry not in touched}
        elif rng.random() < 0.1:
            counts.discard_up_to(Position(ledger, first))
            naive = {entry: c for entry, c in naive.items() if entry > (ledger, first)}
        kept = {entry: c for entry, c in naive.items() if c}
        assert {(n, e): c for n, a, b, c in counts for e in range(a, b + 1)} == kept
        found = list(counts)
        for (n, _, end, count), (of, start, _, following) in itertools.pairwise(found):
            assert n != of or end + 1 < start or count != following, "neighbours are one run"
        runs = counts.runs(ledger, first, last)
        assert [(e, c) for a, b, c in runs for e in range(a, b + 1)] == [
            (entry[1], naive.get(entry, 0)) for entry in touched
        ]
        assert counts.of(ledger, first) == naive.get((ledger, first), 0)


def test_failures_of_a_batchs_messages_add_up() -> None:
    counts = RedeliveryCounts()
    batch = Position(1, 7)
    assert counts.add_row_failures(batch, ((2, 5),)) == ((2, 5, 1),)
    assert counts.add_row_failures(batch, ((4, 6),)) == ((2, 4, 1), (4, 5, 2), (5, 6, 1))
    counts.discard(1, 6, 8)
    assert counts.row_failures(batch) == ()
    assert not counts.has_any
