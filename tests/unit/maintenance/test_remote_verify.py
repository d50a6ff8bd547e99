"""What was deleted, cut or changed in an object store is found, and named with a remedy."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pulsar_ray.errors import RemoteStoreRefused
from pulsar_ray.journal.at_once import carried_out
from pulsar_ray.journal.decisions import DecisionLog
from pulsar_ray.journal.objects import RowChange
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.maintenance.remote_verify import RemoteFindings, verify_remote
from tests.unit.journal.test_store_journal import homes, shipped_with_pieces, taken_over, url

__all__ = ["homes", "url"]


@pytest.fixture
def shipped(homes: tuple[Path, Path], url: str) -> Path:
    """The folder of an object store with pieces, an index, and a journal behind that."""
    return asyncio.run(shipped_with_pieces(homes, url, objects=3))


def looked(folder: Path, *, is_deep: bool = False) -> RemoteFindings:
    return verify_remote(FileStore(folder), is_deep=is_deep)


def names(folder: Path, prefix: str) -> list[str]:
    return FileStore(folder).list(prefix)


@pytest.mark.parametrize("is_deep", [False, True])
def test_all_is_whole(shipped: Path, is_deep: bool) -> None:
    found = looked(shipped, is_deep=is_deep)
    assert found.is_clean, list(map(str, found.faults))
    assert (found.stores, found.ended, found.partitions, found.remarks) == (1, 0, 1, [])
    assert found.objects >= 5


def test_a_prefix_without_a_journal_is_no_clean_one(tmp_path: Path) -> None:
    with pytest.raises(RemoteStoreRefused, match="look at the address"):
        looked(tmp_path)


def test_a_piece_that_is_deleted_cut_or_another_is_named(shipped: Path) -> None:
    pieces = names(shipped, "segments/")
    for name in pieces:
        path = shipped / name
        whole = path.read_bytes()
        for change in (None, whole[:-9], whole[:40] + b"x" + whole[41:]):
            path.unlink(missing_ok=True)
            if change is not None:
                path.write_bytes(change)
            (fault,) = looked(shipped).faults
            assert fault.object == name
            assert "remote_durability" in fault.remedy
        path.write_bytes(whole)
    assert looked(shipped).is_clean


def test_an_object_of_the_journal_that_is_damaged_or_missing_is_named(shipped: Path) -> None:
    for name in names(shipped, "journal/")[:-1]:
        path = shipped / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        (fault,) = looked(shipped).faults
        assert fault.object == name
        path.unlink()
        (fault,) = looked(shipped).faults
        assert (fault.object, "is not there" in fault.reason) == (name, True)
        path.write_bytes(whole)
    assert looked(shipped).is_clean


def test_a_journal_without_its_index_is_no_whole_one(shipped: Path) -> None:
    for name in names(shipped, "index/"):
        (shipped / name).unlink()
    (fault,) = looked(shipped).faults
    assert "is not there, though" in fault.reason


def test_a_damaged_index_is_named(shipped: Path) -> None:
    name = names(shipped, "index/")[-1]
    (shipped / name).write_bytes(b"PRJ1")
    (fault,) = looked(shipped).faults
    assert fault.object == name


def test_an_entry_of_the_catalog_that_is_missing_or_damaged_is_named(shipped: Path, url: str) -> None:
    taken_over(shipped.parent / "b", url)
    first = names(shipped, "catalog/")[0]
    whole = (shipped / first).read_bytes()
    (shipped / first).unlink()
    (fault,) = looked(shipped).faults
    assert (fault.object, "later entries" in fault.reason) == (first, True)
    (shipped / first).write_bytes(whole[:-1])
    assert [fault.object for fault in looked(shipped).faults] == [first]
    (shipped / first).write_bytes(whole)
    found = looked(shipped, is_deep=True)
    assert found.is_clean, list(map(str, found.faults))
    assert (found.stores, found.ended, found.partitions) == (2, 1, 1)


def test_a_decision_of_the_controller_that_is_missing_or_damaged_is_named(shipped: Path) -> None:
    store = FileStore(shipped)
    log = DecisionLog(lambda: b"nonce")
    carried_out(log.begin(None), store, time.sleep)
    rows = (RowChange("topic", 1, {"name": "t", "partitions": 0}),)
    carried_out(log.copy([rows]), store, time.sleep)
    for _ in range(3):
        assert carried_out(log.decide(rows), store, time.sleep)
    assert looked(shipped).is_clean
    for name in (names(shipped, "decisions/")[-2], *names(shipped, "copied/")):
        path = shipped / name
        whole = path.read_bytes()
        for change in (None, whole[:-9], whole[:10] + b"x" + whole[11:]):
            path.unlink(missing_ok=True)
            if change is not None:
                path.write_bytes(change)
            (fault,) = looked(shipped).faults
            assert name in str(fault)
            assert "versions" in fault.remedy
        path.write_bytes(whole)
    assert looked(shipped).is_clean
