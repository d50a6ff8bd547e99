"""Where the catalog is and who may make one, decided from what the nodes report."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest

from pulsar_ray.broker.catalog.catalog import FOUNDED_NUMBERS, REBUILT_NUMBERS, REBUILT_RANGES
from pulsar_ray.broker.catalog.catalog_file import CatalogIdentity
from pulsar_ray.broker.catalog.founding import (
    CatalogOrder,
    NodeReport,
    StartPermission,
    check_is_ours,
    check_may_make,
    decide,
    is_for_cluster,
    new_range,
    place_of_catalog,
)
from pulsar_ray.errors import (
    BrokerNotFounded,
    CatalogConflict,
    CatalogMissing,
    CorruptData,
    NetworkFileSystem,
    NotOurDataDirectory,
    ServiceUnitNotReady,
)
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity

NOBODY, FOUNDER, REBUILDER = (
    StartPermission(),
    StartPermission(may_found=True),
    StartPermission(may_found=True, may_rebuild=True),
)


def node(name: str, **fields: object) -> NodeReport:
    return NodeReport(name, f"host-{name}", "/data", **fields)  # type: ignore[arg-type]


def store(name: str, cluster: str = "", *generations: str, catalog: str = "") -> StoreIdentity:
    return StoreIdentity(
        name, 2, cluster, catalog, f"host-of-{catalog}" if catalog else "", generations, numbers_below=1
    )


def head(name: str, cluster: str, *generations: str) -> NodeReport:
    """A node with a catalog and the store beside it."""
    return node(
        name,
        store=store(name, cluster, *generations, catalog=name if cluster else ""),
        has_partitions=True,
        catalog=CatalogIdentity(cluster, generations),
    )


def worker(name: str, cluster: str, *generations: str, catalog: str) -> NodeReport:
    return node(name, store=store(name, cluster, *generations, catalog=catalog), has_partitions=True)


def of_cluster(report: NodeReport) -> NodeReport:
    assert report.store is not None
    return replace(report, store=replace(report.store, is_of_ray_cluster=True))


def decided(
    word: StartPermission, *reports: NodeReport, here: str = "a", silent: tuple[str, ...] = ()
) -> CatalogOrder:
    ids = itertools.count(1)
    return decide(reports, word, here=here, silent=silent, new_id=lambda: f"new-{next(ids)}")


@pytest.mark.parametrize("word", [NOBODY, FOUNDER])
@pytest.mark.parametrize("here", ["a", "b", "c"])
def test_the_catalog_is_found_from_everywhere(word: StartPermission, here: str) -> None:
    reports = (node("a"), head("b", "x", "g1"), worker("c", "x", "g1", catalog="b"))
    order = decided(word, *reports, here=here)
    assert (order.node_id, order.kind, order.cluster_id) == ("b", "open", "x")
    # Although one does not answer, or has something else there.
    broken = node("d", problem=CorruptData("/data/store.json", 0))
    assert decided(word, *reports, broken, here=here, silent=("e",)).node_id == "b"


def test_nothing_anywhere_takes_a_word() -> None:
    with pytest.raises(BrokerNotFounded, match=r"pulsar-ray start.*allow_founding"):
        decided(NOBODY, node("a"), node("b"))
    order = decided(FOUNDER, node("a"), node("b", store=store("fresh")), here="b")
    assert order == CatalogOrder("b", "found", "new-1", "new-2")


@pytest.mark.parametrize(
    ("reports", "chosen"),
    [
        ((node("a"), node("h")), "h"),
        ((node("a", store=store("a")), node("h", store=store("h"))), "h"),
        ((node("a"), node("b", store=store("b")), node("h")), "h"),
        # `init-store` on the asking node alone says that the head is to keep nothing.
        ((node("a", store=store("a")), node("h")), "a"),
        ((node("a"), node("h", problem=NotOurDataDirectory("another program's"))), "a"),
        ((node("a"), node("b")), "a"),
    ],
)
def test_a_broker_is_founded_on_the_head_whoever_asks(reports: tuple[NodeReport, ...], chosen: str) -> None:
    ids = itertools.count()
    order = decide(reports, FOUNDER, here="a", head="h", new_id=lambda: f"{next(ids)}")
    assert (order.kind, order.node_id) == ("found", chosen)


def test_a_lost_catalog_without_a_place_is_made_anew_on_the_head() -> None:
    reports = (node("a"), worker("b", "x", "g1", catalog="c"), node("h"))
    assert decide(reports, REBUILDER, here="a", head="h", new_id=lambda: "new").node_id == "h"


@pytest.mark.parametrize(
    ("word", "reports", "is_cluster"),
    [
        (FOUNDER, (node("a"),), True),
        (REBUILDER, (worker("a", "x", "g1", catalog="c"),), True),
        # What an embedded broker has begun: a program meets it, or `pulsar-ray start` says that it moves.
        (NOBODY, (head("a", "x", "g1"), node("b")), False),
        (FOUNDER, (head("a", "x", "g1"), node("b")), True),
        (NOBODY, (head("a", "x", "g1"), worker("b", "x", "g1", catalog="a")), True),
        (NOBODY, (of_cluster(head("a", "x", "g1")),), True),
    ],
)
def test_stores_are_of_a_cluster_where_somebody_has_said_so(
    word: StartPermission, reports: tuple[NodeReport, ...], is_cluster: bool
) -> None:
    assert is_for_cluster(decided(word, *reports), word, reports) is is_cluster
    # Two nodes of Ray may share one machine.
    assert is_for_cluster(decided(word, *reports), word, [*reports, *reports]) is is_cluster


def test_a_store_knows_where_the_catalog_is() -> None:
    assert place_of_catalog(store("fresh")) == ""
    # Whoever is told may be on another node.
    assert "is on host-of-b, which is there: `pulsar-ray start`" in place_of_catalog(
        store("b", "x", catalog="b")
    )
    elsewhere = place_of_catalog(store("b", "x", catalog="c"))
    assert elsewhere.startswith("the catalog of topics is on host-of-c (store c): start the node that has it")
    assert "--rebuild-catalog" in elsewhere


def test_stores_without_their_catalog_are_never_taken_for_nothing() -> None:
    for word in (NOBODY, FOUNDER):
        with pytest.raises(
            CatalogMissing, match=r"host-b:/data \(cluster x\).*host-of-z \(store z\).*--rebuild"
        ):
            decided(word, node("a"), worker("b", "x", "g1", catalog="z"))
        with pytest.raises(CatalogMissing, match=r"host-b:/data"):
            decided(word, node("a"), node("b", store=store("old"), has_partitions=True))


def shipping(report: NodeReport) -> NodeReport:
    return replace(report, remote_url="s3://bucket")


def test_what_is_decided_in_an_object_store_goes_on_at_a_node_that_is_there() -> None:
    reports = (node("a"), shipping(worker("b", "x", "g1", catalog="z")))
    assert decided(FOUNDER, *reports) == CatalogOrder("a", "recover", "x", "new-1")
    # Whoever only connects is told how.
    with pytest.raises(CatalogMissing, match="`pulsar-ray start` goes on"):
        decided(NOBODY, *reports)
    # Although a node does not answer, which could have the catalog.
    assert decided(FOUNDER, *reports, silent=("e",)).kind == "recover"
    with pytest.raises(CatalogConflict, match="2 clusters"):
        decided(FOUNDER, *reports, shipping(worker("c", "y", "g", catalog="z")))


def test_a_catalog_that_was_replaced_does_not_serve_again() -> None:
    former, later = head("a", "x", "g1"), shipping(worker("b", "x", "g1", "g2", catalog="z"))
    assert decided(FOUNDER, former, later) == CatalogOrder("b", "recover", "x", "new-1")
    with pytest.raises(CatalogMissing, match="was replaced by a later one"):
        decided(NOBODY, former, later)
    assert decided(FOUNDER, former, shipping(head("c", "x", "g1", "g2"))).node_id == "c"


def test_a_lost_catalog_is_made_anew_where_it_was() -> None:
    reports = (node("a"), worker("b", "x", "g1", catalog="c"), worker("c", "x", "g1", catalog="c"))
    assert decided(REBUILDER, *reports) == CatalogOrder("c", "rebuild", "x", "new-1")
    assert decided(REBUILDER, *reports[:2]) == CatalogOrder("a", "rebuild", "x", "new-1")
    old = node("b", store=store("old"), has_partitions=True)
    assert decided(REBUILDER, node("a"), old) == CatalogOrder("a", "rebuild", "new-1", "new-2")
    assert decided(REBUILDER, head("b", "x", "g1")) == CatalogOrder("b", "rebuild", "x", "new-1")
    with pytest.raises(CatalogMissing, match="no store to make"):
        decided(REBUILDER, node("a"))
    with pytest.raises(CatalogConflict, match="2 clusters"):
        decided(REBUILDER, worker("b", "x", "g", catalog="z"), worker("c", "y", "g", catalog="z"))


def test_of_two_catalogs_none_is_guessed() -> None:
    for other in (head("b", "y", "h1"), head("b", "x", "h1"), head("b", "")):
        with pytest.raises(CatalogConflict, match=r"host-a:/data.*host-b:/data"):
            decided(FOUNDER, head("a", "x", "g1"), other)
    torn = node("a", store=store("a", "x", "g1", catalog="a"), catalog=CatalogIdentity("y", ("h1",)))
    with pytest.raises(CatalogConflict, match="store of cluster x and the catalog of cluster y"):
        decided(FOUNDER, torn)


def test_a_catalog_that_was_made_from_another_one_comes_after_it() -> None:
    later, former = head("b", "x", "g1", "g2"), head("a", "x", "g1")
    assert decided(NOBODY, former, later).node_id == "b"
    # The former store has been taken in by the later catalog.
    aside = node("a", store=store("a", "x", "g1", "g2", catalog="b"), catalog=CatalogIdentity("x", ("g1",)))
    assert decided(NOBODY, aside, later).node_id == "b"
    with pytest.raises(CatalogMissing, match="host-of-b"):
        decided(FOUNDER, aside)
    with pytest.raises(CatalogMissing, match="replaced by a later one on host-of-b"):
        decided(FOUNDER, former, worker("c", "x", "g1", "g2", catalog="b"))


def test_what_could_not_be_looked_at_may_have_it() -> None:
    with pytest.raises(ServiceUnitNotReady, match="host-b"):
        decided(FOUNDER, node("a"), silent=("host-b",))
    with pytest.raises(CorruptData):
        decided(FOUNDER, node("a"), node("b", problem=CorruptData("/data/meta.sqlite", 0)))
    # But not where something else is.
    for error in (NotOurDataDirectory("thesis"), NetworkFileSystem("nfs")):
        assert decided(FOUNDER, node("a"), node("b", problem=error)).node_id == "a"
        with pytest.raises(type(error)):
            decided(FOUNDER, node("a", problem=error), node("b"))


def test_nodes_that_see_one_directory_count_once() -> None:
    one = head("a", "x", "g1")
    same = [
        NodeReport(name, "host", "/data", "disk-1", one.store, one.has_partitions, one.catalog)
        for name in ("b", "a", "c")
    ]
    assert decided(NOBODY, *same).node_id == "a"


def test_a_catalog_of_version_0_1_gets_a_cluster() -> None:
    assert decided(NOBODY, head("b", ""), node("a")) == CatalogOrder("b", "open", "new-1", "new-2")


def test_an_order_is_carried_out_once() -> None:
    found, rebuild = CatalogOrder("a", "found", "x", "g2"), CatalogOrder("a", "rebuild", "x", "g2")
    check_may_make(found, store("a"), False, "meta.sqlite")
    check_may_make(rebuild, store("a", "x", "g1"), True, "meta.sqlite")
    for order in (found, rebuild, CatalogOrder("a", "open", "x", "g3")):
        with pytest.raises(CatalogMissing, match=r"meta\.sqlite is gone"):
            check_may_make(order, store("a", "x", "g1", "g2"), True, "meta.sqlite")
    for holder, has_partitions in ((store("a", "x", "g1"), False), (store("a"), True)):
        with pytest.raises(CatalogMissing):
            check_may_make(found, holder, has_partitions, "meta.sqlite")


def test_a_catalog_is_opened_only_with_its_cluster() -> None:
    order = CatalogOrder("a", "open", "x", "g")
    for ours in (CatalogIdentity("x", ("g1",)), CatalogIdentity("", ())):
        check_is_ours(order, store("a", "x"), ours, "meta.sqlite")
    check_is_ours(order, store("a"), CatalogIdentity("x", ("g1",)), "meta.sqlite")
    for holder in (store("a", "x"), store("a", "y")):
        with pytest.raises(CatalogConflict):
            check_is_ours(order, holder, CatalogIdentity("y", ("g1",)), "meta.sqlite")


def test_a_new_range_has_no_number_that_anybody_saw() -> None:
    random = Random(1)
    seen = [5, FOUNDED_NUMBERS - 1]
    for _ in range(REBUILT_RANGES):
        first = new_range(seen, random)
        new = range(first, first + REBUILT_NUMBERS)
        assert first >= FOUNDED_NUMBERS
        assert first + REBUILT_NUMBERS < 1 << 32
        assert not any(number in new for number in seen)
        seen.append(first + random.randrange(REBUILT_NUMBERS))
    with pytest.raises(CatalogConflict, match="no numbers left"):
        new_range(seen, random)
