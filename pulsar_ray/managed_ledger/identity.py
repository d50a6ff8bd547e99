"""Whose log a directory holds."""

from __future__ import annotations

import logging
from pathlib import Path

from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.manifest_log import read_manifest
from pulsar_ray.managed_ledger.records import TopicIdentity

__all__ = ["TopicIdentity", "read_identities"]

logger = logging.getLogger(__name__)


def read_identities(directory: Path) -> list[tuple[str, int, str, int]]:
    """(own name, number, partitioned topic's name, partition) of every partition below a directory.

    It only reads, and needs no lock: identities never change. Unreadable directories are logged and left out.
    """
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        if not path.name.isdigit():
            continue
        try:
            content = read_manifest(path)
        except (OSError, PulsarException) as error:
            logger.warning("%s is left out: %s", path, error)
            continue
        if content is not None:
            number, name, partition = content.manifest.identity
            found.append((name, number, name.removesuffix(f"-partition-{partition}"), partition))
    return found
