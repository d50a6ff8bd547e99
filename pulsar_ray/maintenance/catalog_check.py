"""Checks the catalog's file, and compares it with the partitions of its store."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pulsar_ray.broker.catalog.catalog_file import BESIDE_SQLITE, CATALOG_VERSION, check_tables
from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.maintenance.damage import Damage, Findings, Kind
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity

_TELL_DAMAGES = 20


@contextlib.contextmanager
def reading_catalog(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that reads a catalog and changes nothing, beside a controller or without one.

    Raises CorruptData, UnsupportedFormatVersion.
    """
    # Without a log beside it the file is all there is; SQLite would make one to read.
    is_alone = not any(path.with_name(path.name + name).exists() for name in BESIDE_SQLITE)
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_alone else ''}"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            check_tables(connection)
            ((version,),) = connection.execute("PRAGMA user_version").fetchall()
            if version > CATALOG_VERSION:
                raise UnsupportedFormatVersion(
                    f"{path} has format version {version}, this build uses {CATALOG_VERSION}"
                )
            yield connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise CorruptData(str(path), 0, f"no sound SQLite file ({error})") from None


def check_catalog(path: Path, store: StoreIdentity, ledgers: Path) -> Findings:
    """Check the catalog beside a store against itself and against the partitions' directories."""
    findings = Findings()
    damage = Damage(Kind.CATALOG, str(path), "")
    try:
        with reading_catalog(path) as catalog:
            reasons = catalog.execute(f"PRAGMA integrity_check({_TELL_DAMAGES})").fetchall()
            if reasons != [("ok",)]:
                findings.add(*(replace(damage, reason=" ".join(str(r[0]).split())) for r in reasons))
                return findings
            ((cluster_id,),) = catalog.execute("SELECT cluster_id FROM cluster").fetchall() or [("",)]
            if cluster_id and store.cluster_id and cluster_id != store.cluster_id:
                reason = f"it is of cluster {cluster_id}, the store of {store.cluster_id}"
                findings.add(replace(damage, reason=reason))
            _compare(catalog, store, ledgers, findings)
    except UnsupportedFormatVersion as error:
        findings.add(replace(damage, kind=Kind.VERSION, reason=error.text))
    except CorruptData as error:
        findings.add(replace(damage, reason=error.text))
    return findings


def _compare(catalog: sqlite3.Connection, store: StoreIdentity, ledgers: Path, findings: Findings) -> None:
    """Compare the rows of this store with its directories."""
    listed = set()
    rows = catalog.execute(
        "SELECT name, number, has_ledger FROM partition WHERE store_id = ?", (store.store_id,)
    )
    for name, number, has_ledger in rows:
        listed.add(number)
        if not has_ledger or (ledgers / str(number)).is_dir():
            continue
        lost = str(ledgers / str(number))
        findings.add(Damage(Kind.PARTITION, lost, "the directory is not there", topic=name))
    for number in partition_numbers(ledgers):
        if number not in listed:
            findings.remarks.append(
                f"{ledgers / str(number)} is of no topic in the catalog: it is not served"
            )
