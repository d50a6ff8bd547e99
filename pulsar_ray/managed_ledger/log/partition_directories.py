"""Whose log a directory holds."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import parse_segment_name
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.managed_ledger.log.manifest.manifest_log import read_manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import TopicIdentity
from pulsar_ray.managed_ledger.log.move_note import read_move_note

__all__ = [
    "PartitionDirectory",
    "TopicIdentity",
    "identity_of_segments",
    "partition_numbers",
    "read_identities",
]

logger = logging.getLogger(__name__)


class PartitionDirectory(NamedTuple):
    """The identity of the partition that a directory was made for.

    `cluster_id` is "" in what version 0.1 wrote.
    """

    name: str
    number: int
    topic: str
    partition_index: int
    cluster_id: str
    rank: tuple[bool, int] = (True, 0)
    """Of two directories that a move leaves the one with the higher rank counts."""


def partition_numbers(directory: Path) -> list[int]:
    """The numbers of all partition directories below a directory; only names are read."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def read_identities(directory: Path, numbers: Collection[int] | None = None) -> list[PartitionDirectory]:
    """Read the identity of every partition below a directory, in the order of their numbers.

    With `numbers` only of these.

    It only reads, and needs no lock: identities never change. Unreadable directories are logged and left out.
    """
    found = []
    for number in partition_numbers(directory) if numbers is None else sorted(numbers):
        path = directory / str(number)
        try:
            content, rank = read_manifest(path), read_move_note(path).rank
        except (OSError, PulsarException) as error:
            logger.warning("%s is left out: %s", path, error)
            continue
        if content is not None:
            number, name, partition, cluster_id = content.manifest.identity
            topic = name.removesuffix(f"-partition-{partition}")
            found.append(PartitionDirectory(name, number, topic, partition, cluster_id, rank))
    return found


def identity_of_segments(directory: Path) -> TopicIdentity | None:
    """Whose ledgers lie in a directory, by the first intact header of a segment.

    It names no cluster.
    """
    for path in sorted(directory.iterdir()):
        if (parsed := parse_segment_name(path.name)) is None:
            continue
        try:
            with SegmentReader(path) as reader:
                header = reader.header()
        except PulsarException:
            continue
        if header.ledger_id == parsed[0]:
            return TopicIdentity(header.ledger_id >> LEDGER_COUNTER_BITS, header.topic, header.partition)
    return None
