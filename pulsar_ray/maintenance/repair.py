"""Repairs a node's data directory that nobody uses."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.broker.catalog.catalog_file import BESIDE_SQLITE
from pulsar_ray.broker.catalog.founding import new_range
from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.journal.offloaded.direct_reading import reading_directly
from pulsar_ray.ledger.offloaded import is_offloaded
from pulsar_ray.maintenance.catalog_check import reading_catalog
from pulsar_ray.maintenance.damage import Damage, Findings, Kind
from pulsar_ray.maintenance.damage_cut import cuts_of
from pulsar_ray.maintenance.form_repair import is_of_form, mended_form
from pulsar_ray.maintenance.partition_check import check_partition
from pulsar_ray.maintenance.partition_repair import Repair, SetAside, repairs_of
from pulsar_ray.maintenance.segment_check import Progress
from pulsar_ray.maintenance.verify import (
    LEDGERS,
    check_catalog_of,
    check_store,
    require_data_directory,
    verify_directory,
)
from pulsar_ray.managed_ledger.log.manifest.manifest_records import TopicIdentity
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers, read_identities
from pulsar_ray.managed_ledger.store.store_directory import holding_alone
from pulsar_ray.managed_ledger.store.store_identity import (
    CATALOG_FILE,
    STORE_FILE,
    StoreIdentity,
    write_identity,
)
from pulsar_ray.managed_ledger.store.unfinished_growth import prepared_numbers

_ROUNDS = 4
"""Damage may hide further damage.

Behind a manifest there are cursors, and behind `store.json` a catalog.
"""


@dataclass
class RepairReport:
    """The outcome of a repair, or of a dry run."""

    repairs: list[Repair] = field(default_factory=list)
    left: Findings = field(default_factory=Findings)
    kept: Path | None = None
    """Where the former files are; None if nothing was replaced."""


def repair_directory(
    path: Path,
    now_ms: int,
    *,
    is_dry_run: bool,
    cuts_damaged: bool = False,
    tell: Callable[[Repair], None] = lambda _: None,
    progress: Progress = lambda _: None,
) -> RepairReport:
    """Mend what can be mended without a loss, and check the directory again.

    With `cuts_damaged` lost entries are cut out as well: nobody is told of them any more.
    Files that are replaced are kept below `repaired/`. A repair that was killed can be run again. A dry run
    changes nothing, and shows what the first look finds. `progress` is called with each count of bytes read:
    all of them twice, those of damaged partitions more often.

    Raises NotOurDataDirectory if it is none, DataDirectoryInUse if a broker uses it, OSError.
    """
    require_data_directory(path)
    report = RepairReport()
    with holding_alone(path, f"pulsar-ray repair, process {os.getpid()}"), reading_directly(path):
        aside = SetAside(path, str(now_ms))
        whole: set[int] = set()
        for _ in range(1 if is_dry_run else _ROUNDS):
            repairs = _plan(path, cuts_damaged, whole, progress)
            for repair in repairs:
                tell(repair)
                if not is_dry_run:
                    repair.run(aside)
                report.repairs.append(repair)
            if not repairs:
                break
        if aside.path.is_dir():
            report.kept = aside.path
        report.left = verify_directory(path, progress)
    return report


def _plan(path: Path, cuts_damaged: bool, whole: set[int], progress: Progress) -> list[Repair]:
    """Plan the next round; partitions in which nothing is found are not read again."""
    found = Findings()
    identity = check_store(path, found)
    repairs = repairs_of_store(path, found.damages)
    if repairs or any(damage.kind is Kind.VERSION for damage in found.damages):
        return repairs
    names = identities_in_catalog(path, identity) if identity else {}
    cluster_id = identity.cluster_id if identity else ""
    for number in partition_numbers(path / LEDGERS):
        if number in whole:
            continue
        directory = path / LEDGERS / str(number)
        damages = check_partition(directory, cluster_id, progress).damages
        if not damages:
            whole.add(number)
            continue
        try:
            of_partition = repairs_of(directory, damages, cluster_id, names.get(number))
            if not of_partition and any(is_of_form(damage) for damage in damages):
                of_partition = mended_form(directory, damages)
            if cuts_damaged and not of_partition:
                # Offloaded segments are mended in the object store, or skipped by their readers.
                of_partition = cuts_of(directory, [d for d in damages if not is_offloaded(Path(d.path))])
            repairs += of_partition
        except (CorruptData, UnsupportedFormatVersion, OSError):
            # A second fault of the same file, or a newer one behind it: it stays, among what is left.
            continue
    if not repairs and identity is not None:
        # It is made of the partitions, once these are whole.
        repairs += repairs_of_catalog(path, check_catalog_of(path, identity).damages, identity)
    return repairs


def repairs_of_store(path: Path, damages: Iterable[Damage]) -> list[Repair]:
    """Plan a new `store.json` from the catalog beside it; nothing without one."""
    if not any(damage.kind is Kind.STORE for damage in damages):
        return []
    identity = _identity_by_catalog(path)
    if identity is None:
        return []

    def run(aside: SetAside) -> None:
        if (path / STORE_FILE).exists():
            aside.take(path / STORE_FILE)
        write_identity(path, identity)

    text = f"written anew as store {identity.store_id} of cluster {identity.cluster_id}, by the catalog"
    return [Repair(Kind.STORE, str(path / STORE_FILE), text, run)]


def _identity_by_catalog(path: Path) -> StoreIdentity | None:
    """Which store a directory is by its catalog: the one whose partitions lie here."""
    file = path / CATALOG_FILE
    if not file.exists():
        return None
    here = set(partition_numbers(path / "p"))
    try:
        with reading_catalog(file) as catalog:
            ((cluster_id,),) = catalog.execute("SELECT cluster_id FROM cluster").fetchall()
            generations = [row[0] for row in catalog.execute("SELECT id FROM generation ORDER BY place")]
            hosts = dict(catalog.execute("SELECT store_id, host FROM store").fetchall())
            numbers: dict[str, set[int]] = {store_id: set() for store_id in hosts}
            for store_id, number in catalog.execute("SELECT store_id, number FROM partition"):
                numbers.setdefault(store_id, set()).add(number)
            ((last_number,),) = catalog.execute("SELECT value FROM last_number").fetchall()
            ((logs,),) = catalog.execute("SELECT COUNT(*) FROM change_log").fetchall()
    except (CorruptData, UnsupportedFormatVersion, ValueError):
        return None
    candidates = [store_id for store_id in hosts if here & numbers[store_id]] or list(hosts)
    if len(candidates) != 1:
        return None
    return StoreIdentity(
        candidates[0],
        cluster_id=cluster_id,
        catalog_store_id=candidates[0],
        catalog_host=hosts[candidates[0]],
        generations=tuple(generations),
        numbers_below=last_number + 1,
        has_change_logs=bool(logs),
    )


def identities_in_catalog(path: Path, identity: StoreIdentity) -> dict[int, TopicIdentity]:
    """The identities of the partitions here, by the catalog; none without one."""
    file = path / CATALOG_FILE
    if not _is_sound(file):
        return {}
    with reading_catalog(file) as catalog:
        rows = catalog.execute(
            "SELECT number, name, partition_index FROM partition WHERE store_id = ?", (identity.store_id,)
        ).fetchall()
    return {number: TopicIdentity(number, name, index, identity.cluster_id) for number, name, index in rows}


def repairs_of_catalog(path: Path, damages: Iterable[Damage], identity: StoreIdentity) -> list[Repair]:
    """Plan a catalog that is made anew from the partitions here.

    Tenants, namespaces and policies are read from the logs of changes when the broker starts.
    """
    file = path / CATALOG_FILE
    kinds = {damage.kind for damage in damages}
    if Kind.CATALOG not in kinds or Kind.VERSION in kinds or _is_sound(file):
        return []
    rows = [
        PartitionRow(each.name, each.number, each.topic, each.partition_index, identity.store_id, True)
        for each in read_identities(path / "p")
        if each.cluster_id in ("", identity.cluster_id)
    ]
    rows.sort(key=lambda row: -row.number)

    def run(aside: SetAside) -> None:
        for place in (file, *(file.with_name(file.name + name) for name in BESIDE_SQLITE)):
            if place.exists():
                aside.take(place)
        seen = [identity.numbers_below, *(row.number for row in rows)]
        catalog, _ = Catalog.make(
            file,
            identity.cluster_id,
            str(uuid.uuid4()),
            new_range(seen, Random()),
            identity.generations,
            rows,
            prepared_numbers(path / "p"),
            has_change_logs=identity.has_change_logs,
        )
        catalog.remember_store(identity.store_id, identity.catalog_host, str(path))
        catalog.close()

    text = (
        f"made anew from {len(rows)} partitions here; those of other nodes are taken in by "
        "`pulsar-ray start --rebuild-catalog` with all nodes there"
    )
    return [Repair(Kind.CATALOG, str(file), text, run)]


def _is_sound(file: Path) -> bool:
    if not file.exists():
        return False
    try:
        with reading_catalog(file) as catalog:
            return bool(catalog.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)])
    except (CorruptData, UnsupportedFormatVersion):
        return False
