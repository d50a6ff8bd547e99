"""Repairs a node's data directory that nobody uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.maintenance.damage import Findings, Kind
from pulsar_ray.maintenance.damage_cut import cuts_of
from pulsar_ray.maintenance.partition_check import check_partition
from pulsar_ray.maintenance.partition_repair import Repair, repairs_of
from pulsar_ray.maintenance.segment_check import Progress
from pulsar_ray.maintenance.set_aside import SetAside
from pulsar_ray.maintenance.store_repair import (
    identities_in_catalog,
    repairs_of_catalog,
    repairs_of_store,
)
from pulsar_ray.maintenance.verify import (
    LEDGERS,
    check_catalog_of,
    check_store,
    require_data_directory,
    verify_directory,
)
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers
from pulsar_ray.managed_ledger.store.store_directory import holding_alone

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
    with holding_alone(path, f"pulsar-ray repair, process {os.getpid()}"):
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
            if cuts_damaged and not of_partition:
                of_partition = cuts_of(directory, damages)
            repairs += of_partition
        except (CorruptData, UnsupportedFormatVersion, OSError):
            # A second fault of the same file, or a newer one behind it: it stays, among what is left.
            continue
    if not repairs and identity is not None:
        # It is made of the partitions, once these are whole.
        repairs += repairs_of_catalog(path, check_catalog_of(path, identity).damages, identity)
    return repairs
