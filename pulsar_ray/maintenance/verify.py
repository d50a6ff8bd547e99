"""Verifies a node's whole data directory; reads only."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.errors import CorruptData, NotOurDataDirectory, UnsupportedFormatVersion
from pulsar_ray.journal.offloaded.direct_reading import reading_directly
from pulsar_ray.maintenance.catalog_check import check_catalog
from pulsar_ray.maintenance.damage import Damage, Findings, Kind, seen_thrice
from pulsar_ray.maintenance.partition_check import check_partition
from pulsar_ray.maintenance.segment_check import Progress
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers
from pulsar_ray.managed_ledger.store.store_identity import (
    CATALOG_FILE,
    STORE_FILE,
    StoreIdentity,
    read_identity,
)

LEDGERS = "p"


def _nothing(_: int) -> None:
    pass


def verify_directory(path: Path, progress: Progress = _nothing) -> Findings:
    """Check everything in a data directory, while a broker uses it or not.

    A write that is under way, or was when the broker died, is no damage: nobody was promised anything of it.
    In memory are one manifest, one cursor and one frame at a time, and the damages, up to a bound. Raises
    NotOurDataDirectory if it is none.
    """
    require_data_directory(path)
    findings = Findings()
    identity = check_store(path, findings)
    ledgers = path / LEDGERS
    with reading_directly(path):
        for number in partition_numbers(ledgers):
            directory = ledgers / str(number)
            findings.merge(check_partition(directory, identity.cluster_id if identity else "", progress))
    if identity is not None:
        findings.merge(check_catalog_of(path, identity))
    return findings


def stored_bytes(path: Path) -> int:
    """How many bytes of segments a data directory has, for progress."""
    total = 0
    for segment in (path / LEDGERS).glob("[0-9]*/*.seg"):
        try:
            total += segment.stat().st_size
        except FileNotFoundError:  # trimmed meanwhile
            continue
    return total


def require_data_directory(path: Path) -> None:
    """Raise NotOurDataDirectory unless something of a broker is there."""
    named = (STORE_FILE, CATALOG_FILE)
    if not any((path / name).exists() for name in named) and not partition_numbers(path / LEDGERS):
        raise NotOurDataDirectory(f"{path} is no data directory: it has neither store.json nor partitions")


def check_store(path: Path, findings: Findings) -> StoreIdentity | None:
    """Read `store.json`; None if it is damaged."""
    try:
        identity = read_identity(path)
    except UnsupportedFormatVersion as error:
        findings.add(Damage(Kind.VERSION, str(path / STORE_FILE), error.text))
        return None
    except CorruptData as error:
        findings.add(Damage(Kind.STORE, error.path, error.text))
        return None
    if identity is None:
        findings.add(Damage(Kind.STORE, str(path / STORE_FILE), "the file is not there"))
    return identity


def check_catalog_of(path: Path, identity: StoreIdentity) -> Findings:
    """Check the catalog, if it belongs here."""
    file = path / CATALOG_FILE
    if not file.exists():
        findings = Findings()
        if identity.cluster_id and identity.catalog_store_id == identity.store_id:
            findings.add(Damage(Kind.CATALOG, str(file), "the file is not there"))
        return findings
    return seen_thrice(lambda: check_catalog(file, identity, path / LEDGERS))
