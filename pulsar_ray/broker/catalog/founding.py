"""Where a cluster's catalog is, and who may make one (ADR 0026).

Decided from the reports of every node; pure.

There is one truth about topics: the catalog. Its place is found, never guessed; an empty one is only made on
somebody's word, and never beside stores that belong to a catalog that is away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from pulsar_ray.broker.catalog.catalog import FOUNDED_NUMBERS, REBUILT_NUMBERS, REBUILT_RANGES
from pulsar_ray.broker.catalog.catalog_file import CatalogIdentity
from pulsar_ray.errors import (
    BrokerNotFounded,
    CatalogConflict,
    CatalogMissing,
    NetworkFileSystem,
    NotOurDataDirectory,
    PulsarException,
    ServiceUnitNotReady,
)
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity

REMEDIES = (
    "start the node that has it, with its disk; if it is lost for good, bring up all other nodes and run "
    "`pulsar-ray start --rebuild-catalog` (an embedded broker: `pulsar-ray standalone --rebuild-catalog`)"
)

RECOVERY = "Here its decisions are in an object store: `pulsar-ray start` goes on with them on another node."


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The content of one node's data directory.

    `directory` is equal for nodes that see the same one.
    """

    node_id: str
    host: str
    path: str
    directory: str = ""
    store: StoreIdentity | None = None
    has_partitions: bool = False
    catalog: CatalogIdentity | None = None
    problem: PulsarException | None = None
    remote_url: str = ""
    """The object store that has the journal of the store; "" if none has."""

    def __str__(self) -> str:
        return f"{self.host}:{self.path}"


@dataclass(frozen=True, slots=True)
class StartPermission:
    """The permission to begin an empty catalog, or to make a lost one anew."""

    may_found: bool = False
    may_rebuild: bool = False


@dataclass(frozen=True, slots=True)
class CatalogOrder:
    """The controller's order: the catalog that it opens or makes on its node.

    It is carried out once, however often the actor restarts: `generation` stands in the catalog and in the
    store beside it from then on.
    """

    node_id: str
    kind: Literal["open", "found", "rebuild", "recover"]
    cluster_id: str
    generation: str
    is_of_ray_cluster: bool = False
    """Whether its stores are for a Ray that `ray start` began; see `is_for_cluster`."""


def decide(
    reports: Iterable[NodeReport],
    word: StartPermission,
    *,
    here: str,
    head: str = "",
    silent: Collection[str] = (),
    new_id: Callable[[], str],
) -> CatalogOrder:
    """Decide on which node the catalog is, and what to do there.

    `here` is the asking node, `head` Ray's head node, `silent` are hosts that did not answer.

    Raises CatalogConflict, CatalogMissing, BrokerNotFounded, what is wrong with a directory, or
    ServiceUnitNotReady while nodes do not answer that may have the catalog.
    """
    reports = _distinct(reports, here)
    catalog = _the_catalog(reports)
    may_recover = word.may_found and not word.may_rebuild and has_journal(reports)
    if catalog is not None and catalog.catalog is not None:
        if not word.may_rebuild:
            try:
                _refuse_former(catalog, catalog.catalog, members_of(reports))
            except CatalogMissing:
                if not may_recover:
                    raise
                return _recover(reports, _first_choice(reports, here, head), new_id)
        cluster_id = catalog.catalog.cluster_id or new_id()
        return CatalogOrder(catalog.node_id, "rebuild" if word.may_rebuild else "open", cluster_id, new_id())
    members = members_of(reports)
    if may_recover:
        # Wherever the catalog is: of two that serve only the one that began last decides (ADR 0140).
        return _recover(reports, _first_choice(reports, here, head), new_id)
    _refuse_unseen(reports, here, silent)
    orphans = [report for report in reports if report not in members and report.has_partitions]
    if word.may_rebuild:
        return _rebuild(reports, members, orphans, _first_choice(reports, here, head), new_id)
    if members or orphans:
        remedy = f" {RECOVERY}" if has_journal(reports) else ""
        raise CatalogMissing(_without_catalog(members, orphans) + remedy)
    if not word.may_found:
        raise BrokerNotFounded(
            "no broker runs on this Ray cluster, and none was ever started on it with the data directory "
            f"{reports[0].path if reports else '?'}: run `pulsar-ray start` on the head node, give the data "
            "directory of the one that was (PULSAR_RAY_DATA_DIR, data_dir), or set allow_founding to let "
            "this program begin an empty one"
        )
    return CatalogOrder(_first_choice(reports, here, head), "found", new_id(), new_id())


def _first_choice(reports: Sequence[NodeReport], here: str, head: str) -> str:
    """The node for a catalog that has no place yet: Ray's head, whoever asks.

    The asking node if the head has something else there, or only the asking one was made a store before.
    """
    stores = {report.node_id for report in reports if report.store is not None}
    is_usable = any(report.node_id == head and report.problem is None for report in reports)
    return head if is_usable and (head in stores or here not in stores) else here


def is_for_cluster(order: CatalogOrder, word: StartPermission, reports: Iterable[NodeReport]) -> bool:
    """Whether a Ray of `ray start` has the stores that serve on it for good.

    A single store that an embedded broker has made, and a program only met on such a Ray, stays open to both:
    nobody has said that it moves.
    """
    stores = {
        report.store.store_id: report.store for report in members_of(reports) if report.store is not None
    }
    is_of_cluster = any(store.is_of_ray_cluster for store in stores.values())
    return order.kind != "open" or word.may_found or is_of_cluster or len(stores) > 1


def members_of(reports: Iterable[NodeReport]) -> list[NodeReport]:
    """Those whose store belongs to a cluster."""
    return [report for report in reports if report.store is not None and report.store.cluster_id]


def _distinct(reports: Iterable[NodeReport], here: str) -> list[NodeReport]:
    """One report of each directory, of the asking node if it sees that one."""
    found: dict[str, NodeReport] = {}
    for report in sorted(reports, key=lambda report: (report.node_id != here, report.host, report.node_id)):
        found.setdefault(report.directory or report.node_id, report)
    return list(found.values())


def _the_catalog(reports: Sequence[NodeReport]) -> NodeReport | None:
    candidates = [report for report in reports if report.catalog is not None and not _is_put_aside(report)]
    for report in candidates:
        store, catalog = report.store, report.catalog
        if store and catalog and store.cluster_id and catalog.cluster_id not in ("", store.cluster_id):
            raise CatalogConflict(
                f"{report} holds a store of cluster {store.cluster_id} and the catalog of cluster "
                f"{catalog.cluster_id}: put back the meta.sqlite that belongs there"
            )
    if len(candidates) <= 1:
        return next(iter(candidates), None)
    for report in candidates:
        if all(_succeeds(report, other) for other in candidates if other is not report):
            return report
    named = " and ".join(
        f"{report} (cluster {report.catalog.cluster_id or 'of version 0.1'})"
        for report in candidates
        if report.catalog is not None
    )
    raise CatalogConflict(
        f"there are {len(candidates)} catalogs: {named}. Only one may serve: give the others another "
        "data_dir, or take their nodes out; what is stored there stays"
    )


def _is_put_aside(report: NodeReport) -> bool:
    """Whether the store beside a catalog knows of a later one elsewhere."""
    store = report.store
    return store is not None and store.catalog_store_id not in ("", store.store_id)


def _succeeds(report: NodeReport, other: NodeReport) -> bool:
    """Whether a catalog was made from the other one or its stores."""
    ours, theirs = report.catalog, other.catalog
    if ours is None or theirs is None or not theirs.generations or ours.cluster_id != theirs.cluster_id:
        return False
    return set(ours.generations) > set(theirs.generations)


def _refuse_former(report: NodeReport, catalog: CatalogIdentity, members: Iterable[NodeReport]) -> None:
    """Raise CatalogMissing if a store knows a later catalog than this one."""
    for member in members:
        store = member.store
        if store is None or store.cluster_id != catalog.cluster_id:
            continue
        if set(store.generations) > set(catalog.generations):
            raise CatalogMissing(
                f"the catalog at {report} was replaced by a later one on {store.catalog_host} (store "
                f"{store.catalog_store_id}), which {member} belongs to: {REMEDIES}"
            )


def _refuse_unseen(reports: Sequence[NodeReport], here: str, silent: Collection[str]) -> None:
    """Raise unless every directory that may hold the catalog was looked at."""
    for report in reports:
        # Something else is there, so our catalog is not.
        is_elses = isinstance(report.problem, NotOurDataDirectory | NetworkFileSystem)
        if report.problem is not None and (report.node_id == here or not is_elses):
            raise report.problem
    if silent:
        raise ServiceUnitNotReady(
            f"the catalog may be on a node that does not answer: {', '.join(sorted(silent))}; try again, or "
            "end that node"
        )


def has_journal(reports: Iterable[NodeReport]) -> bool:
    """Whether an object store has what stores of a cluster hold."""
    return any(report.remote_url for report in members_of(reports))


def _made(
    kind: Literal["rebuild", "recover"],
    members: Sequence[NodeReport],
    at: str,
    new_id: Callable[[], str],
) -> CatalogOrder:
    clusters = sorted({report.store.cluster_id for report in members if report.store is not None})
    if len(clusters) > 1:
        raise CatalogConflict(
            f"the stores {_listed(members)} belong to {len(clusters)} clusters: bring up those of one only"
        )
    return CatalogOrder(at, kind, clusters[0] if clusters else new_id(), new_id())


def _rebuild(
    reports: Sequence[NodeReport],
    members: Sequence[NodeReport],
    orphans: Sequence[NodeReport],
    otherwise: str,
    new_id: Callable[[], str],
) -> CatalogOrder:
    if not members and not orphans:
        where = ", ".join(str(report) for report in reports)
        raise CatalogMissing(f"there is no store to make a catalog from: looked at {where}")
    # Where the lost one was, if that node is there.
    at = next((report.node_id for report in members if _had_catalog(report)), otherwise)
    return _made("rebuild", members, at, new_id)


def _had_catalog(report: NodeReport) -> bool:
    return report.store is not None and report.store.catalog_store_id == report.store.store_id


def _recover(reports: Sequence[NodeReport], otherwise: str, new_id: Callable[[], str]) -> CatalogOrder:
    """Go on elsewhere: others may have taken over what lies where the lost one was."""
    members = members_of(reports)
    former = {report.node_id for report in members if _had_catalog(report)}
    others = (report.node_id for report in members if report.node_id not in former)
    return _made("recover", members, next(others, otherwise) if otherwise in former else otherwise, new_id)


def place_of_catalog(store: StoreIdentity) -> str:
    """Say where the catalog of a store's cluster is.

    Also what to do if nobody serves it; "" if the store belongs to no cluster.
    """
    if not store.cluster_id:
        return ""
    place = f"the catalog of topics is on {store.catalog_host}"
    if store.catalog_store_id == store.store_id:
        return f"{place}, which is there: `pulsar-ray start` brings it up"
    return f"{place} (store {store.catalog_store_id}): {REMEDIES}"


def _without_catalog(members: Sequence[NodeReport], orphans: Sequence[NodeReport]) -> str:
    stores = [report.store for report in members if report.store is not None]
    places = sorted({f"{store.catalog_host} (store {store.catalog_store_id})" for store in stores})
    was = f"It was on {' or '.join(places)}: " if places else ""
    return (
        "the catalog of topics is on no running node, but there are stores: "
        f"{_listed([*members, *orphans])}. {was}{REMEDIES}"
    )


def _listed(reports: Sequence[NodeReport]) -> str:
    return ", ".join(
        f"{report} (cluster {report.store.cluster_id})"
        if report.store is not None and report.store.cluster_id
        else str(report)
        for report in reports
    )


def new_range(seen: Iterable[int], random: Random) -> int:
    """Choose where a catalog that is made anew begins to grant numbers.

    It is a range of which nobody has seen a number.

    Chosen by chance, so that a second rebuilding, from other stores, hardly takes the same. Raises
    CatalogConflict if all are in use.
    """
    used = {(number - FOUNDED_NUMBERS) // REBUILT_NUMBERS for number in seen}
    free = [place for place in range(REBUILT_RANGES) if place not in used]
    if not free:
        raise CatalogConflict(f"a catalog was made anew {REBUILT_RANGES} times: there are no numbers left")
    return FOUNDED_NUMBERS + random.choice(free) * REBUILT_NUMBERS


def check_may_make(order: CatalogOrder, store: StoreIdentity, has_partitions: bool, path: object) -> None:
    """Raise CatalogMissing unless the catalog that is not there was never made as ordered."""
    is_empty = not store.cluster_id and not has_partitions
    if order.generation in store.generations or order.kind in ("open", "recover"):
        raise CatalogMissing(
            f"{path} is gone: mount its disk, or put it back; if it is lost for good, bring up all nodes and "
            "run `pulsar-ray stop` and `pulsar-ray start --rebuild-catalog`"
        )
    if order.kind == "found" and not is_empty:
        raise CatalogMissing(f"{path} is not there, but a store with data is: {REMEDIES}")


def check_is_ours(order: CatalogOrder, store: StoreIdentity, catalog: CatalogIdentity, path: object) -> None:
    """Raise CatalogConflict unless the catalog belongs to the order and to its store."""
    for other in (order.cluster_id, store.cluster_id):
        if other and catalog.cluster_id not in ("", other):
            raise CatalogConflict(
                f"{path} is the catalog of cluster {catalog.cluster_id}, not of {other}: put back the one "
                "that belongs there"
            )
