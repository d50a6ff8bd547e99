"""Marks the partitions of growing topics that are prepared and not added yet (ADR 0010).

The marks stand beside the partitions' directories.

Without them a rebuilt catalog could not tell these partitions from the others. A mark is made before its
partition's directory, and goes before the topic gets the partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pulsar_ray.ledger.disk import Disk

_SUFFIX = ".prepared"


def mark_prepared(directory: Path, numbers: Iterable[int], disk: Disk) -> None:
    """Durable when this returns; may be repeated."""
    directory.mkdir(0o700, exist_ok=True)
    for number in numbers:
        _mark(directory, number).touch(0o600)
    disk.fsync_dir(directory)


def mark_added(directory: Path, numbers: Iterable[int], disk: Disk) -> None:
    """Take the marks away, durably; may be repeated."""
    for number in numbers:
        _mark(directory, number).unlink(missing_ok=True)
    if directory.is_dir():
        disk.fsync_dir(directory)


def prepared_numbers(directory: Path) -> set[int]:
    """The numbers of the partitions that have a mark."""
    return {int(path.stem) for path in directory.glob(f"*{_SUFFIX}") if path.stem.isdigit()}


def _mark(directory: Path, number: int) -> Path:
    return directory / f"{number}{_SUFFIX}"
