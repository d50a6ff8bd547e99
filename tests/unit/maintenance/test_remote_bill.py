"""The bill adds up objects by kind, and carries on the PUTs of now for a day."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.journal.objects import Place, journal_key
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.journal.storage.object_store import Listed
from pulsar_ray.maintenance.remote_bill import DAY_S, Prices, bill_of

NOW_S = 1_000_000.0


def journal(life: int, number: int, age_s: float, store: str = "a") -> Listed:
    return Listed(journal_key(store, Place(life, number)), 100, NOW_S - age_s)


def test_puts_are_those_since_the_newest_index_carried_on_for_a_day() -> None:
    listed = [
        journal(1, 900, 50_000),  # of a former life
        *(journal(2, number, DAY_S / 2 - number) for number in range(100, 120)),
        journal(1, 0, 5.0, store="new"),
        Listed("segments/7/f/0-8", 4_000, NOW_S - 10),
        Listed("segments/7/f/8-9", 4_000, NOW_S - 2 * DAY_S),
        Listed("index/a/1", 10, NOW_S),
        Listed("journal/a/README.md", 0, NOW_S),  # somebody has put it there
    ]
    bill = bill_of(listed, Prices(), NOW_S)
    assert (bill.kinds["journal"].objects, bill.kinds["segments"].bytes) == (23, 8_000)
    assert (bill.objects, bill.bytes) == (26, 22 * 100 + 8_010)
    assert bill.puts_per_day == pytest.approx(40 + DAY_S / 60 + 1, rel=0.01)


def test_costs_go_by_the_prices() -> None:
    bill = bill_of([Listed("segments/7/f/0-8", 30 * 10**9, 0.0)], Prices(1.0, 2.0), NOW_S)
    assert bill.storage_cost_per_day == pytest.approx(2.0)
    assert bill.puts_cost_per_day == 0.0
    bill.puts_per_day = 500
    assert bill.puts_cost_per_day == pytest.approx(0.5)


def test_a_shared_directory_tells_the_sizes_of_its_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    store.create("catalog/0", b"12")
    store.create("index/a/0", b"123")
    assert sorted((key, size) for key, size, _ in store.measured()) == [("catalog/0", 2), ("index/a/0", 3)]
