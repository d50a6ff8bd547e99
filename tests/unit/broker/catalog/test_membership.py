"""Who belongs to a cluster, and what a store is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.catalog.administration.effective_policies import EffectivePolicies
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.membership import Membership
from pulsar_ray.config import Settings
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity
from pulsar_ray.model.topic_name import TopicName

TOPIC = TopicName.parse("t")


@pytest.fixture
def membership(tmp_path: Path) -> Membership:
    catalog, _ = Catalog.make(tmp_path / "meta.sqlite", "x", "g1")
    catalog.remember_store("own", "head", "/data")
    return Membership(catalog, "own", "head", takes_old=False, takes_empty=False)


def described(
    identity: StoreIdentity | None, host: str = "new", *, has_partitions: bool = False
) -> dict[str, Any]:
    return {"identity": identity, "path": "/data", "host": host, "has_partitions": has_partitions}


def test_stores_of_this_cluster_and_fresh_ones_are_taken_in(membership: Membership) -> None:
    fresh = StoreIdentity("s")
    assert membership.refusal(described(fresh)) == ""
    told = membership.recorded(fresh)
    assert (told.cluster_id, told.generations, told.catalog_store_id) == ("x", ("g1",), "own")
    assert membership.refusal(described(told, has_partitions=True)) == ""


def test_stores_of_others_are_told_apart(membership: Membership) -> None:
    other = StoreIdentity("s", cluster_id="y", generations=("g1",))
    assert "is a store of cluster y, this is x" in membership.refusal(described(other))
    apart = StoreIdentity("s", 2, "x", "s", "elsewhere", ("g1", "g2"))
    assert "another catalog of this cluster, on elsewhere" in membership.refusal(described(apart))


def test_stores_of_version_0_1_are_taken_in_if_the_catalog_knows_them_or_on_a_word(
    membership: Membership,
) -> None:
    old = described(StoreIdentity("s", 1), has_partitions=True)
    assert "--rebuild-catalog" in membership.refusal(old)
    membership.catalog.create(TOPIC, 0, ["s"])
    assert membership.refusal(old) == ""
    stranger = described(StoreIdentity("stranger", 1), has_partitions=True)
    assert membership.refusal(stranger)
    assert dataclasses.replace(membership, takes_old=True).refusal(stranger) == ""


def test_an_empty_directory_needs_a_word_and_one_that_had_a_store_another(membership: Membership) -> None:
    assert "pulsar-ray init-store /data" in membership.refusal(described(None))
    spaced = {**described(None), "path": "/my data"}
    assert "`pulsar-ray init-store '/my data'`" in membership.refusal(spaced)
    assert not membership.is_expected("new")
    open_to_all = dataclasses.replace(membership, takes_empty=True)
    assert open_to_all.refusal(described(None)) == ""
    assert "this node had store own: mount its disk" in open_to_all.refusal(described(None, "head"))
    assert open_to_all.is_expected("head")


def test_numbers_that_a_store_knows_of_are_not_granted_again(membership: Membership) -> None:
    """The catalog is one that was put back from a copy."""
    store = described(StoreIdentity("s", cluster_id="x", generations=("g1",), numbers_below=41))
    membership.take_in(store)
    (row,) = membership.catalog.create(TOPIC, 0, ["s"])
    assert row.number == 41
    assert membership.recorded(store["identity"]).numbers_below == 42
    assert membership.recorded(store["identity"], 50).numbers_below == 50


def test_stores_that_are_away_are_named(membership: Membership) -> None:
    membership.catalog.create(TOPIC, 3, ["own", "s"])
    membership.catalog.remember_store("s", "worker", "/data")
    assert membership.away({"own", "s"}) == []
    (away,) = membership.away({"own"})
    assert away == {"store_id": "s", "host": "worker", "path": "/data", "partitions": 1}


def _present(host: str, node_id: str) -> dict[str, Any]:
    return {"host": host, "node_id": node_id, "path": "/data"}


def test_every_node_that_was_ever_in_is_listed_with_its_state(membership: Membership) -> None:
    membership.catalog.create(TOPIC, 4, ["own", "s", "lost"])
    membership.catalog.remember_store("s", "worker1", "/data")
    membership.catalog.remember_store("lost", "worker2", "/data")
    present = {"own": _present("head", "n0")}
    refused = [
        {"host": "worker2", "node_id": "n2", "path": "/data", "reason": "is empty", "is_lost": True},
        {"host": "worker3", "node_id": "n3", "path": "/data", "reason": "holds no store", "is_lost": False},
    ]
    membership.observe(present, 1000)
    membership.observe(present, 2000)
    told = membership.nodes(present, refused, draining=())
    assert [
        (node["host"], node["storeId"], node["state"], node["partitions"], node["sinceMs"]) for node in told
    ] == [
        ("head", "own", "serving", 2, 0),
        ("worker1", "s", "away", 1, 1000),
        ("worker2", "lost", "lost", 1, 1000),
        ("worker3", "", "without store", 0, 0),
    ]
    assert [node["reason"] for node in told] == ["", "", "is empty", "holds no store"]
    assert membership.nodes(present, (), draining=("n0",))[0]["state"] == "draining"


def test_a_store_that_comes_back_is_away_anew_only_when_it_goes_again(membership: Membership) -> None:
    def since(present: dict[str, Any]) -> int:
        (node,) = membership.nodes(present, (), draining=())
        return int(node["sinceMs"])

    membership.observe({}, 1000)
    assert since({}) == 1000
    membership.observe({"own"}, 2000)
    assert since({"own": _present("head", "n0")}) == 0
    membership.observe({}, 3000)
    assert since({}) == 3000


def test_a_full_disk_does_not_keep_the_broker_from_looking_for_stores(
    membership: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise BrokerPersistenceError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(membership.catalog, "note_absence", full)
        membership.observe({}, 1000)
    membership.observe({}, 2000)
    assert membership.catalog.absences() == {"own": 2000}


def test_how_many_stores_are_expected_outlasts_the_process(membership: Membership, tmp_path: Path) -> None:
    assert membership.catalog.expected_stores == 0
    membership.catalog.expect_stores(3)
    membership.catalog.close()
    again = Catalog(tmp_path / "meta.sqlite")
    assert again.expected_stores == 3
    again.expect_stores(0)
    assert again.expected_stores == 0


def test_stores_record_that_there_are_change_logs(membership: Membership) -> None:
    store = StoreIdentity("s", cluster_id="x", generations=("g1",))
    assert not membership.recorded(store).has_change_logs
    membership.has_change_logs = True
    assert membership.recorded(store).has_change_logs


def test_a_store_that_knows_of_change_logs_keeps_a_catalog_from_believing_there_are_none(
    membership: Membership,
) -> None:
    policies = EffectivePolicies(membership.catalog, Settings())
    topic = "persistent://public/default/t"
    plain = StoreIdentity("s", cluster_id="x", generations=("g1",))
    membership.take_in(described(plain))
    assert policies.is_complete(topic)
    membership.take_in(described(dataclasses.replace(plain, has_change_logs=True)))
    assert not policies.is_complete(topic)
