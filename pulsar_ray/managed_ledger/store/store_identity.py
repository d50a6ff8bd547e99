"""`store.json`: the identity of a data directory, its cluster, and its knowledge of the catalog."""

from __future__ import annotations

import dataclasses
import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk, write_whole

STORE_FILE = "store.json"
CATALOG_FILE = "meta.sqlite"
STORE_FORMAT_VERSION = 2
"""Version 1 (of 0.1) had no cluster.

It is read, and written as 2 when a cluster takes the store in.
"""


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The contents of `store.json`.

    A store without a `cluster_id` belongs to none yet, or to one of version 0.1.

    `catalog_store_id` and `catalog_host` locate the cluster's catalog, `generations` lists the catalogs there
    have been, `numbers_below` is above every partition number that may have been granted (ADR 0026).
    `has_change_logs`: policies may lie in logs, without which a new catalog does not know them (ADR 0031).
    `is_of_ray_cluster`: a Ray that `ray start` began uses it, so that no embedded broker may.
    `succeeds`: the store that this directory was before others ended that (ADR 0137).
    `copied_ms`: a backup made the directory at that time, and nobody has adopted it (ADR 0053).
    """

    store_id: str
    format_version: int = STORE_FORMAT_VERSION
    cluster_id: str = ""
    catalog_store_id: str = ""
    catalog_host: str = ""
    generations: tuple[str, ...] = ()
    numbers_below: int = 0
    has_change_logs: bool = False
    copied_ms: int = 0
    is_of_ray_cluster: bool = False
    succeeds: str = ""


def new_identity(*, is_of_ray_cluster: bool = False) -> StoreIdentity:
    """A store of no cluster yet."""
    return StoreIdentity(str(uuid.uuid4()), is_of_ray_cluster=is_of_ray_cluster)


def successor(identity: StoreIdentity, *, has_partitions: bool) -> StoreIdentity:
    """Return the identity of a new store in the directory of an ended one.

    Without partitions it is of no cluster yet.
    """
    anew = new_identity(is_of_ray_cluster=identity.is_of_ray_cluster)
    if has_partitions:
        return dataclasses.replace(identity, store_id=anew.store_id, succeeds=identity.store_id)
    return dataclasses.replace(anew, succeeds=identity.store_id, numbers_below=identity.numbers_below)


def read_identity(directory: Path) -> StoreIdentity | None:
    """The identity of the store in a directory; None if there is none.

    Raises CorruptData, UnsupportedFormatVersion for that of a newer build, OSError.
    """
    path = directory / STORE_FILE
    try:
        stored = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        content = json.loads(stored)
        version = int(content["format_version"])
        known = {field.name for field in dataclasses.fields(StoreIdentity)}
        fields = {name: value for name, value in content.items() if name in known}
        fields["generations"] = tuple(map(str, fields.get("generations", ())))
        fields["numbers_below"] = int(fields.get("numbers_below", 0))
        fields["has_change_logs"] = bool(fields.get("has_change_logs", False))
        fields["is_of_ray_cluster"] = bool(fields.get("is_of_ray_cluster", False))
        fields["succeeds"] = str(fields.get("succeeds", ""))
        fields["copied_ms"] = int(fields.get("copied_ms", 0))
        identity = StoreIdentity(
            **{**fields, "store_id": str(content["store_id"]), "format_version": version}
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(str(path), 0, f"not a store identity ({error})") from None
    if version not in (1, STORE_FORMAT_VERSION):
        raise UnsupportedFormatVersion(
            f"{directory} has format version {version}, this build uses {STORE_FORMAT_VERSION}"
        )
    return identity


def write_identity(directory: Path, identity: StoreIdentity, disk: Disk = SYSTEM_DISK) -> StoreIdentity:
    """Make it the store's, in today's format: durable and whole when this returns. Raises OSError."""
    identity = dataclasses.replace(identity, format_version=STORE_FORMAT_VERSION)
    write_whole(disk, directory / STORE_FILE, json.dumps(dataclasses.asdict(identity)).encode())
    return identity


def has_partitions(directory: Path) -> bool:
    """Whether anything of a topic lies in the store."""
    partitions = directory / "p"
    return partitions.is_dir() and any(path.name.isdigit() for path in partitions.iterdir())
