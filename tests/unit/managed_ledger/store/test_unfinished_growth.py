from __future__ import annotations

from pathlib import Path

from pulsar_ray.ledger.disk import SystemDisk
from pulsar_ray.managed_ledger.store.unfinished_growth import mark_added, mark_prepared, prepared_numbers

DISK = SystemDisk()


def test_a_mark_is_there_from_preparing_to_adding_however_often_either_comes(tmp_path: Path) -> None:
    ledgers = tmp_path / "p"
    assert prepared_numbers(ledgers) == set()
    mark_added(ledgers, [4], DISK)
    for _ in range(2):
        mark_prepared(ledgers, [4, 5, 17], DISK)
        assert prepared_numbers(ledgers) == {4, 5, 17}
    (ledgers / "4").mkdir()
    for _ in range(2):
        mark_added(ledgers, [4, 17], DISK)
        assert prepared_numbers(ledgers) == {5}
    assert (ledgers / "4").is_dir()
