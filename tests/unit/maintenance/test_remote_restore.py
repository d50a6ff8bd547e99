"""A broker is brought back from an object store whole, or says what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_ray.errors import JournalDamaged, RemoteStoreRefused
from pulsar_ray.maintenance.remote_restore import restore_from
from tests.unit.journal.test_store_journal import homes, shipped_with_pieces, stored, url

__all__ = ["homes", "url"]


@pytest.fixture
def bucket(homes: tuple[Path, Path], url: str) -> Path:
    return asyncio.run(shipped_with_pieces(homes, url))


def test_all_that_was_shipped_comes_back(bucket: Path, url: str, tmp_path: Path) -> None:
    said: list[str] = []
    assert restore_from(url, tmp_path / "new", note=said.append) == (1, 1)
    assert stored(tmp_path / "new") == list(range(23))
    assert said == [
        "looking whether somebody ships there",
        "ending store 1 of 1",
        "restoring 1 partitions",
    ]


def test_what_is_missing_is_named_and_left_out_on_demand_only(bucket: Path, url: str, tmp_path: Path) -> None:
    (piece,) = (path for path in (bucket / "segments").rglob("*") if path.is_file())
    whole = piece.read_bytes()
    piece.unlink()
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=f"{piece.name} is not there.*--accept-loss"):
            restore_from(url, tmp_path / "new", takes_over=True)
    said: list[str] = []
    came = restore_from(url, tmp_path / "other", takes_over=True, accepts_loss=True, note=said.append)
    assert (came.partitions, "is left out" in said[-1]) == (0, True)
    piece.write_bytes(whole)
    assert restore_from(url, tmp_path / "third", takes_over=True).partitions == 1
    assert stored(tmp_path / "third") == list(range(23))


def test_an_address_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteStoreRefused, match="look at the address"):
        restore_from((tmp_path / "nothing").as_uri(), tmp_path / "new")
