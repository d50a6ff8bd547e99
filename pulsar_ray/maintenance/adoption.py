"""Lets a copy of a data directory be served from now on."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from pulsar_ray.errors import NotOurDataDirectory
from pulsar_ray.managed_ledger.store.store_directory import holding_alone
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, read_identity, write_identity


def adopt_copy(path: Path) -> tuple[StoreIdentity, bool]:
    """Take the mark of a copy away, durably.

    Returns the identity, and whether it was a copy. It goes on as the store and the cluster that it is a copy
    of. Raises NotOurDataDirectory, DataDirectoryInUse, CorruptData, UnsupportedFormatVersion, OSError.
    """
    if read_identity(path) is None:
        raise NotOurDataDirectory(f"{path} has no store.json: a backup that was broken off, or none")
    with holding_alone(path, f"pulsar-ray adopt, process {os.getpid()}"):
        identity = read_identity(path)
        assert identity is not None
        if not identity.copied_ms:
            return identity, False
        return write_identity(path, dataclasses.replace(identity, copied_ms=0, is_of_ray_cluster=False)), True
