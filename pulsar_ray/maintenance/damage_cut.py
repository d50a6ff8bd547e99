"""Cuts lost entries out of a partition's segments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.ledger.recovery import SegmentScan
from pulsar_ray.ledger.segment_file import SegmentInfo, segment_name
from pulsar_ray.maintenance.damage import Damage, Kind
from pulsar_ray.maintenance.lost_entries import write_without_damage
from pulsar_ray.maintenance.partition_content import PartitionContent
from pulsar_ray.maintenance.partition_repair import Repair
from pulsar_ray.maintenance.set_aside import SetAside
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo, Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_log import read_manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import LedgersDeleted
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted


def cuts_of(directory: Path, damages: Iterable[Damage]) -> list[Repair]:
    """Plan to replace lost entries by placeholders, and to drop missing segments.

    Only reads. Raises UnsupportedFormatVersion, CorruptData, OSError.
    """
    damages = [damage for damage in damages if damage.kind is Kind.ENTRIES or _is_gone(damage)]
    if not damages:
        return []
    content = read_manifest(directory)
    if content is None:
        return []
    take_unlisted(content)
    partition = PartitionContent.of(content)
    repairs = [
        Repair(damage.kind, damage.path, _text(damage), _nothing, topic=damage.topic) for damage in damages
    ]
    last: dict[int, int] = {}
    for damage in damages:
        last[damage.ledger_id] = max(last.get(damage.ledger_id, -1), damage.last_entry_id)
    paths = {damage.path for damage in damages}
    # One new manifest for all of them, behind the last one.
    final = repairs[-1]
    run = partial(_cut, partition=partition, paths=paths, lost_up_to=last)
    return [*repairs[:-1], Repair(final.kind, final.path, final.text, run, final.topic)]


def _is_gone(damage: Damage) -> bool:
    return damage.kind is Kind.SEGMENT and not Path(damage.path).exists()


def _text(damage: Damage) -> str:
    if damage.kind is Kind.SEGMENT:
        return "the empty segment is forgotten"
    count = "1 entry is" if damage.entries == 1 else f"{damage.entries:,} entries are"
    range_ = f"{damage.ledger_id}:{damage.first_entry_id} to {damage.ledger_id}:{damage.last_entry_id}"
    return f"{range_}: {count} cut out"


def _nothing(_: SetAside) -> None:
    """A part of what the last repair of the partition does."""


def _cut(aside: SetAside, partition: PartitionContent, paths: set[str], lost_up_to: dict[int, int]) -> None:
    manifest = partition.manifest
    for path in manifest.directory.glob("manifest-*"):
        aside.keep(path)
    for ledger_id in lost_up_to:
        if ledger_id >= 0 and ledger_id not in manifest.ledgers:
            _add_lost_ledger(manifest, ledger_id, paths)
    for ledger in list(manifest.ledgers.values()):
        if any(str(segment.path) in paths for segment in ledger.segments):
            _cut_ledger(aside, manifest, ledger, paths, lost_up_to.get(ledger.ledger_id, -1))
    partition.write()


def _add_lost_ledger(manifest: Manifest, ledger_id: int, paths: set[str]) -> None:
    path = manifest.directory / segment_name(ledger_id, 0)
    paths.add(str(path))
    manifest.ledgers[ledger_id] = LedgerInfo(ledger_id, 1, [SegmentInfo(ledger_id, 0, path, 0, 0, -1)])


def _cut_ledger(
    aside: SetAside, manifest: Manifest, ledger: LedgerInfo, paths: set[str], lost_up_to: int
) -> None:
    """Write the ledger's damaged segments anew, and end it behind its last entry."""
    ledger.segments = list(_cut_segments(aside, manifest, ledger, paths, lost_up_to))
    if not ledger.segments:
        manifest.apply(LedgersDeleted([ledger.ledger_id]))
        return
    if ledger.is_open and str(ledger.segments[-1].path) not in paths:
        return
    ledger.last_entry_id = ledger.segments[-1].last_entry_id
    ledger.size_bytes = sum(segment.end_offset for segment in ledger.segments)
    ledger.closed_ms = ledger.closed_ms or max(ledger.opened_ms, 1)
    manifest.last_position = max(manifest.last_position, ledger.last_position)


def _cut_segments(
    aside: SetAside, manifest: Manifest, ledger: LedgerInfo, paths: set[str], lost_up_to: int
) -> Iterator[SegmentInfo]:
    for segment in ledger.segments:
        if str(segment.path) not in paths:
            yield segment
            continue
        is_last = ledger.is_open and segment is ledger.segments[-1]
        last = lost_up_to if is_last else segment.last_entry_id
        if not segment.path.exists() and last < segment.first_entry_id:
            continue
        staged = segment.path.with_name(f"{segment.path.name}.new")
        last = max(last, _sound_end(segment)) if is_last else last
        length = write_without_damage(segment, manifest.identity, last, staged)
        if segment.path.exists():
            aside.keep(segment.path)
        os.replace(staged, segment.path)
        SYSTEM_DISK.fsync_dir(manifest.directory)
        yield segment._replace(end_offset=length, last_entry_id=last)


def _sound_end(segment: SegmentInfo) -> int:
    """The last entry that an open ledger's segment holds."""
    if not segment.path.exists():
        return -1
    first = segment.first_entry_id
    scan = SegmentScan(segment.path, segment.ledger_id, SEGMENT_HEADER_SIZE, first, first - 1)
    for _ in scan.frames():
        pass
    return scan.next_entry_id - 1
