"""Puts aside what a store had that others have ended (ADR 0137).

Nothing is deleted. It stays on the same disk: a data directory may be a whole volume.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from pulsar_ray.closed_places import make_closed_directory
from pulsar_ray.errors import CorruptData
from pulsar_ray.journal.objects import CatalogEntry
from pulsar_ray.journal.ownership import NOBODY
from pulsar_ray.journal.store_files import LIFE_FILE, TERM_FILE, Term, read_term, write_former_term
from pulsar_ray.ledger.disk import SYSTEM_DISK, write_whole
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers
from pulsar_ray.managed_ledger.store.store_identity import (
    CATALOG_FILE,
    STORE_FILE,
    StoreIdentity,
    write_identity,
)


def place_aside(data_dir: Path, store_id: str) -> Path:
    """Return where the partitions of an ended store of this directory lie."""
    return data_dir / f"ended-{store_id}"


def put_aside(
    data_dir: Path, identity: StoreIdentity, owners: Mapping[str, CatalogEntry], kept: Collection[int]
) -> list[int]:
    """Move what an ended store had shipped to another directory; return what is left.

    `owners` are the bucket's catalog's last entries of partitions. Of `kept`, which the broker expects
    here yet, those stay that nobody can have from the object store; they are in no journal then. The one
    aside has the form of a data directory. If it is broken off, it may be called again. Raises OSError
    and UntrustedPath.
    """
    source, aside = data_dir / "p", place_aside(data_dir, identity.store_id)
    make_closed_directory(aside)
    make_closed_directory(aside / "p")
    if not (aside / STORE_FILE).exists():
        write_identity(aside, identity)
    if (data_dir / LIFE_FILE).exists():
        write_whole(SYSTEM_DISK, aside / LIFE_FILE, (data_dir / LIFE_FILE).read_bytes())
    for name in (CATALOG_FILE, *(CATALOG_FILE + end for end in ("-wal", "-shm"))):
        if (data_dir / name).exists():  # another node has the catalog by now
            os.rename(data_dir / name, aside / name)
    left = []
    for number in sorted(partition_numbers(source)):
        owner = owners.get(str(number), NOBODY)
        try:
            term = read_term(source / str(number))
        except CorruptData:
            term = Term(0)  # it may have been shipped: aside it is kept as well
        is_only_here = owner == NOBODY or (
            owner.store == identity.store_id and (term is None or term.is_left_out)
        )
        if number in kept and is_only_here and not (term and term.is_dropped):
            if owner != NOBODY:
                write_former_term(source / str(number), owner.term)
            (source / str(number) / TERM_FILE).unlink(missing_ok=True)
            left.append(number)
        else:
            os.rename(source / str(number), aside / "p" / str(number))
    for folder in (aside / "p", aside, data_dir, source):
        if folder.is_dir():
            SYSTEM_DISK.fsync_dir(folder)
    return left
