"""A store of a Ray cluster, on a machine whose Ray is down: no embedded broker may open it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.membership import Membership
from pulsar_ray.config import Settings
from pulsar_ray.errors import DataDirectoryInUse, NotAllowedError
from pulsar_ray.launch.embedded import ensure_embedded, prepare_run_directory, take_over
from pulsar_ray.managed_ledger.store.known_stores import init_store
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory
from pulsar_ray.managed_ledger.store.store_identity import (
    StoreIdentity,
    new_identity,
    read_identity,
    write_identity,
)


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    return directory


def content(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_a_directory_that_was_made_a_store_of_a_cluster_is_refused_with_nothing_written(
    data_dir: Path,
) -> None:
    init_store(data_dir)
    before = content(data_dir)
    with pytest.raises(NotAllowedError, match=r"is a store of a Ray cluster.*pulsar-ray start.*--take-over"):
        ensure_embedded(Settings(data_dir=str(data_dir)))
    assert content(data_dir) == before


def test_the_refusal_names_the_host_of_the_catalog(data_dir: Path) -> None:
    write_identity(
        data_dir, StoreIdentity("s", cluster_id="x", catalog_host="head-7", is_of_ray_cluster=True)
    )
    with pytest.raises(NotAllowedError, match="with its catalog on head-7"):
        prepare_run_directory(data_dir)


@pytest.mark.parametrize("is_of_ray_cluster", [True, False])
def test_stores_record_whether_a_ray_cluster_has_them(tmp_path: Path, is_of_ray_cluster: bool) -> None:
    catalog, _ = Catalog.make(tmp_path / "meta.sqlite", "x", "g1")
    membership = Membership(
        catalog, "s", "head", takes_old=False, takes_empty=True, is_of_ray_cluster=is_of_ray_cluster
    )
    assert membership.recorded(new_identity()).is_of_ray_cluster is is_of_ray_cluster
    # Once a cluster has used it, a program's own Ray does not take the note away.
    assert membership.recorded(new_identity(is_of_ray_cluster=True)).is_of_ray_cluster


def test_a_store_of_a_cluster_that_is_no_more_can_be_taken_over(data_dir: Path) -> None:
    identity, _ = init_store(data_dir)
    take_over(data_dir)
    prepare_run_directory(data_dir)
    taken = read_identity(data_dir)
    assert taken is not None
    assert taken.store_id == identity.store_id
    take_over(data_dir)


def test_a_store_that_a_cluster_uses_is_not_taken_over(data_dir: Path) -> None:
    init_store(data_dir)
    held = StoreDirectory.open(data_dir, address="the cluster")
    try:
        with pytest.raises(DataDirectoryInUse, match="the cluster"):
            take_over(data_dir)
    finally:
        held.close()
    with pytest.raises(NotAllowedError):
        prepare_run_directory(data_dir)
