"""What a look at a data directory reports: everything, and it changes nothing."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.errors import CorruptData, NotOurDataDirectory
from pulsar_ray.launch.node_reports import node_report
from pulsar_ray.managed_ledger.store.store_directory import create_store


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    report = node_report("n", str(tmp_path / "missing"))
    assert (report.store, report.catalog, report.problem) == (None, None, None)
    assert not (tmp_path / "missing").exists()
    empty = node_report("n", str(tmp_path))
    assert (empty.store, empty.catalog, empty.problem) == (None, None, None)
    assert not list(tmp_path.iterdir())


def test_store_and_catalog_are_reported(tmp_path: Path) -> None:
    identity, _ = create_store(tmp_path)
    assert node_report("n", str(tmp_path)).has_partitions is False
    Catalog.make(tmp_path / "meta.sqlite", "c", "g")[0].close()
    (tmp_path / "p" / "1").mkdir(parents=True)
    before = files(tmp_path)
    report = node_report("n", str(tmp_path))
    assert (report.store, report.catalog, report.has_partitions) == (identity, ("c", ("g",)), True)
    assert report.directory == node_report("m", f"{tmp_path}/").directory
    assert files(tmp_path) == before


def test_what_is_wrong_is_told_apart_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert isinstance(node_report("n", str(tmp_path)).problem, NotOurDataDirectory)
    store = tmp_path / "store"
    create_store(store)
    (store / "store.json").write_text("{")
    assert isinstance(node_report("n", str(store)).problem, CorruptData)
    (store / "store.json").unlink()
    (store / "p" / "1").mkdir(parents=True)
    problem = node_report("n", str(store)).problem
    assert isinstance(problem, CorruptData), "topics without the identity of their store"
    assert "put it back" in str(problem)
