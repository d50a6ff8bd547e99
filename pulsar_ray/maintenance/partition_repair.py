"""Repairs one partition's directory, one step after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pulsar_ray.broker.subscription.delayed.delayed_tracker import index_directory
from pulsar_ray.errors import CorruptData
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.disk import SYSTEM_DISK, create_closed, make_closed
from pulsar_ray.ledger.owner_lock import take_free_lock
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.maintenance.damage import Damage, Kind
from pulsar_ray.maintenance.rebuilding import RebuiltManifest, rebuild_manifest, salvaged_cursor, write_cursor
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.log.manifest.manifest_log import ManifestContent, read_manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Subscription, TopicIdentity
from pulsar_ray.managed_ledger.log.move_note import MOVE_NOTE
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted

SET_ASIDE = "repaired"
"""Below the data directory; each repair has a directory there, named by its time."""


class SetAside:
    """The place of one repair's former files; made with the first of them.

    A file keeps its path below the data directory.
    """

    def __init__(self, data_directory: Path, name: str) -> None:
        self._root = data_directory
        self.path = data_directory / SET_ASIDE / name

    def place_of(self, path: Path) -> Path:
        """Where a file's former bytes are kept."""
        return self.path / path.relative_to(self._root)

    def keep(self, path: Path) -> None:
        """Keep a file durably; it may be replaced then, but not written to."""
        kept = self.place_of(path)
        make_closed(kept.parent)
        if not kept.exists():
            try:
                kept.hardlink_to(path)
            except OSError:  # a file system without links
                _copy_front(path, kept, path.stat().st_size)
        SYSTEM_DISK.fsync_dir(kept.parent)

    def take(self, path: Path) -> None:
        """Move a file or directory here."""
        kept = self.place_of(path)
        make_closed(kept.parent)
        os.replace(path, kept)
        SYSTEM_DISK.fsync_dir(kept.parent)
        SYSTEM_DISK.fsync_dir(path.parent)

    def keep_front(self, path: Path, length: int) -> None:
        """Keep the first bytes of a file, which may be written over then."""
        kept = self.place_of(path).with_name(f"{path.name}.front")
        make_closed(kept.parent)
        _copy_front(path, kept, length)
        SYSTEM_DISK.fsync_dir(kept.parent)


def _copy_front(path: Path, kept: Path, length: int) -> None:
    with path.open("rb") as source, create_closed(kept) as file:
        file.write(source.read(length))
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class Repair:
    """One thing that a repair does, or would do; `run` does it."""

    kind: Kind
    path: str
    text: str
    run: Callable[[SetAside], None]
    topic: str = ""
    subscription: str = ""

    def __str__(self) -> str:
        whose = self.topic or "the store"
        if self.subscription:
            whose += f", subscription {self.subscription}"
        return f"{whose}: {self.kind.value}: {self.text} ({self.path})"

    def describe(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind.value,
            "path": self.path,
            "topic": self.topic,
            "subscription": self.subscription,
            "repair": self.text,
        }


def repairs_of(
    directory: Path, damages: Iterable[Damage], cluster_id: str, by_catalog: TopicIdentity | None = None
) -> list[Repair]:
    """Plan what mends one partition without a loss.

    Only reads. `by_catalog` is whose it is, should none of its files tell. Damage behind that of a manifest
    shows when that is mended. Raises UnsupportedFormatVersion, CorruptData, OSError.
    """
    by_kind: dict[Kind, list[Damage]] = {}
    for damage in damages:
        by_kind.setdefault(damage.kind, []).append(damage)
    if Kind.VERSION in by_kind:
        return []
    repairs = [_new_epoch(damage) for damage in by_kind.get(Kind.EPOCH, ())]
    for damage in by_kind.get(Kind.NOTE, ()):
        if (note := Path(damage.path)).name == MOVE_NOTE:
            text = "taken away: the catalog says where the partition is"
            repairs.append(_repair(damage, text, partial(SetAside.take, path=note)))
    if Kind.MANIFEST in by_kind:
        return repairs + list(_new_manifest(directory, by_kind[Kind.MANIFEST][0], cluster_id, by_catalog))
    content = read_manifest(directory)
    if content is None:
        return repairs
    take_unlisted(content)
    for damage in by_kind.get(Kind.SEGMENT, ()):
        repairs += _new_header(damage, content)
    subscriptions = {each.name: each for each in content.manifest.subscriptions.values()}
    for damage in by_kind.get(Kind.CURSOR, ()):
        repairs.append(_new_cursor(directory, damage, subscriptions[damage.subscription]))
    for damage in by_kind.get(Kind.DELAYED_INDEX, ()):
        path = index_directory(directory, subscriptions[damage.subscription].number)
        text = "taken away; the broker makes it anew from the ledgers"
        repairs.append(_repair(damage, text, partial(SetAside.take, path=path), path))
    return repairs


def _repair(damage: Damage, text: str, run: Callable[[SetAside], None], path: Path | None = None) -> Repair:
    place = damage.path if path is None else str(path)
    return Repair(damage.kind, place, text, run, damage.topic, damage.subscription)


# --- epochs


def _new_epoch(damage: Damage) -> Repair:
    path = Path(damage.path)

    def run(aside: SetAside) -> None:
        if path.exists():
            aside.take(path)
        DirectoryOwner.open(path.parent, create=True, acquire_lock=take_free_lock).close()

    return _repair(damage, "begun anew above the epochs of the files beside it", run)


# --- manifests


def _new_manifest(
    directory: Path, damage: Damage, cluster_id: str, by_catalog: TopicIdentity | None
) -> Iterator[Repair]:
    rebuilt = rebuild_manifest(directory, cluster_id, by_catalog)
    if rebuilt is None:
        return
    manifest = rebuilt.content.manifest
    last = manifest.last_position
    text = (
        f"rebuilt from {len(manifest.ledgers)} ledgers up to {last.ledger_id}:{last.entry_id} and "
        f"{len(manifest.subscriptions)} subscriptions"
    )
    for path in rebuilt.left_out:
        text += f"; {path.name} is left out: no entry stands in it"
    for number in rebuilt.lost_subscriptions:
        text += f"; subscription number {number} is lost: its cursor names none"
    place = Damage(damage.kind, damage.path, "", topic=manifest.identity.topic)
    yield _repair(place, text, partial(_write_manifest, rebuilt=rebuilt))


def _write_manifest(aside: SetAside, rebuilt: RebuiltManifest) -> None:
    directory = rebuilt.content.manifest.directory
    for path in directory.glob("manifest-*"):
        aside.keep(path)
    for path in rebuilt.left_out:
        aside.take(path)
    for number in rebuilt.lost_subscriptions:
        aside.take(cursor_directory(directory, number))
    _sync_ledgers(rebuilt)
    rebuilt.content.write()


def _sync_ledgers(rebuilt: RebuiltManifest) -> None:
    """Sync all ledgers before the manifest calls them durable."""
    for ledger in rebuilt.content.manifest.ledgers.values():
        for segment in ledger.segments:
            if segment.path.exists():
                fd = os.open(segment.path, os.O_RDWR)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)


# --- segments


def _new_header(damage: Damage, content: ManifestContent) -> Iterator[Repair]:
    segment = next(
        (
            segment
            for ledger in content.manifest.ledgers.values()
            for segment in ledger.segments
            if str(segment.path) == damage.path
        ),
        None,
    )
    if segment is not None and segment.path.exists():
        text = "header written anew as the manifest has it"
        yield _repair(damage, text, partial(_write_header, segment=segment, content=content))


def _write_header(aside: SetAside, segment: SegmentInfo, content: ManifestContent) -> None:
    epoch = content.epoch
    with SegmentReader(segment.path) as reader, contextlib.suppress(CorruptData):
        for frame in reader.read_frames(SEGMENT_HEADER_SIZE, reader.size(), 1):
            epoch = frame.header.epoch
    identity = content.manifest.identity
    opened_ms = content.manifest.ledgers[segment.ledger_id].opened_ms
    header = SegmentHeader(
        segment.ledger_id, segment.segment_index, epoch, identity.topic, identity.partition, opened_ms
    )
    aside.keep_front(segment.path, SEGMENT_HEADER_SIZE)
    fd = SYSTEM_DISK.open(segment.path, os.O_RDWR)
    try:
        SYSTEM_DISK.pwrite(fd, header.encode(), 0)
        SYSTEM_DISK.fdatasync(fd)
    finally:
        SYSTEM_DISK.close(fd)


# --- cursors


def _new_cursor(directory: Path, damage: Damage, registered: Subscription) -> Repair:
    cursor = salvaged_cursor(directory, registered.number, registered)
    at = f"{cursor.mark_delete.ledger_id}:{cursor.mark_delete.entry_id}"
    text = f"rebuilt at {at} and {cursor.deleted.entries:,} entries behind; others come again"

    def run(aside: SetAside) -> None:
        for path in cursor_directory(directory, registered.number).glob("cursor-*"):
            aside.take(path)
        write_cursor(directory, registered.number, cursor)

    return _repair(damage, text, run)
