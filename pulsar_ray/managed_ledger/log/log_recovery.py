"""Opening a partition's log: own the directory, read the manifest, seal the last ledger.

The order makes it safe (ADR 0003): the epoch is raised before anything is read, everything found is made
durable before anybody learns of it, and nothing is written into or cut from a file that another owner opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray.errors import CorruptData, NotOurDataDirectory, WrongNode
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.ledger.offloaded import segment_of_note
from pulsar_ray.ledger.owner_lock import HeldLock
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.recovery import Corruption, SegmentScan, make_durable
from pulsar_ray.ledger.segment_file import SegmentInfo, parse_segment_name
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS, LedgerInfo, Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_log import NOTHING, ManifestContent, read_manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    LedgerClosed,
    LedgersDeleted,
    SegmentClosed,
    TopicIdentity,
)
from pulsar_ray.managed_ledger.log.position_index import PositionIndex
from pulsar_ray.managed_ledger.log.producer_incarnations import ProducerIncarnations
from pulsar_ray.managed_ledger.log.producer_sequences import ProducerSequences, SequenceReplay
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted
from pulsar_ray.model.message_id import Position

logger = logging.getLogger(__name__)

LOST_END_BYTES = 8
"""A segment with a lost end is recorded as so much longer than its file."""


@dataclass
class OpenedLog:
    """The result of recovery; every ledger in it is closed and durable."""

    owner: DirectoryOwner
    manifest: Manifest
    index: PositionIndex
    incarnations: ProducerIncarnations
    sequences: ProducerSequences = field(default_factory=ProducerSequences)
    corruptions: list[Corruption] = field(default_factory=list)
    is_new: bool = False
    """Whether there was no manifest before."""


def open_log(
    directory: Path,
    identity: TopicIdentity,
    now_ms: int,
    must_exist: bool,
    acquire_lock: Callable[[Path], HeldLock],
    disk: Disk,
) -> OpenedLog:
    """Become the owner and recover; raises as DirectoryOwner.open and read_manifest, NotOurDataDirectory."""
    owner = DirectoryOwner.open(directory, create=not must_exist, acquire_lock=acquire_lock, disk=disk)
    try:
        content = read_manifest(directory)
        if content is None:
            manifest = _new_manifest(directory, identity, must_exist)
            return OpenedLog(owner, manifest, PositionIndex([], 0), ProducerIncarnations(), is_new=True)
        _check_identity(directory, content.manifest.identity, identity)
        # A log that version 0.1 wrote belongs to our cluster from now on, as its store does.
        content.manifest.identity = identity
        return _recover(owner, content, now_ms, disk)
    except BaseException:
        owner.close()
        raise


def _check_identity(directory: Path, found: TopicIdentity, wanted: TopicIdentity) -> None:
    """Raise NotOurDataDirectory unless the directory was made for this partition, and by this cluster."""
    is_ours = found[:3] == wanted[:3] and (not found.cluster_id or found.cluster_id == wanted.cluster_id)
    if not is_ours:
        raise NotOurDataDirectory(
            f"{directory} holds {_described(found)}, not {_described(wanted)}: it was copied, or "
            "granted twice, and nothing of it is served"
        )


def _described(identity: TopicIdentity) -> str:
    cluster = f" of cluster {identity.cluster_id}" if identity.cluster_id else ""
    return f"{identity.topic} as partition number {identity.number}{cluster}"


def _new_manifest(directory: Path, identity: TopicIdentity, must_exist: bool) -> Manifest:
    if any(parse_segment_name(path.name) for path in directory.iterdir()):
        raise CorruptData(str(directory / "manifest-*"), 0, "there are ledgers but no manifest")
    if must_exist:
        raise WrongNode(f"{directory} should hold {identity.topic} but has no manifest: wrong node or disk")
    manifest = Manifest(directory)
    manifest.identity = identity
    return manifest


def _recover(owner: DirectoryOwner, content: ManifestContent, now_ms: int, disk: Disk) -> OpenedLog:
    manifest = content.manifest
    for path in take_unlisted(content):
        logger.warning("%s is taken in: the record that named it is lost", path)
    index = PositionIndex(content.points, content.scan_from.max_publish_ms)
    opened = OpenedLog(owner, manifest, index, ProducerIncarnations())
    for record in content.incarnations:
        opened.incarnations.restore(record, now_ms)
    for checkpoint in content.folded:
        opened.incarnations.restore_checkpoint(checkpoint.written, checkpoint.retired, now_ms)
    replay = content.sequences.replay()
    for ledger in list(manifest.ledgers.values()):
        _recover_ledger(opened, content, ledger, replay, now_ms, disk)
    opened.sequences = replay.result()
    opened.incarnations.keep()
    opened.incarnations.take_touched()
    manifest.max_publish_ms = index.max_publish_ms
    _sort_out_files(opened, content.is_torn)
    return opened


def _recover_ledger(
    opened: OpenedLog,
    content: ManifestContent,
    ledger: LedgerInfo,
    replay: SequenceReplay,
    now_ms: int,
    disk: Disk,
) -> None:
    start = (content.scan_from.ledger_id, content.scan_from.segment_index)
    for segment in ledger.segments:
        is_last = ledger.is_open and segment is ledger.segments[-1]
        if (ledger.ledger_id, segment.segment_index) < start and not is_last:
            _check_presence(opened, segment)
            continue
        try:
            scan = _scan(opened, content, segment, replay, now_ms, is_last)
            if is_last:
                make_durable(disk, segment.path, scan.unproven_offset, scan.end_offset)
                _seal(opened.manifest, ledger, segment, scan, now_ms)
        except SegmentGone as error:
            _report(opened, segment, str(error))
            if is_last:
                _drop_lost_end(opened.manifest, ledger, segment, now_ms)


def _scan(
    opened: OpenedLog,
    content: ManifestContent,
    segment: SegmentInfo,
    replay: SequenceReplay,
    now_ms: int,
    is_last: bool,
) -> SegmentScan:
    """Go through a segment's frames behind the checkpoint.

    They show what the segment knows of producers and times.
    """
    at, newest = content.scan_from, content.newest
    offset, entry_id = SEGMENT_HEADER_SIZE, segment.first_entry_id
    if (at.ledger_id, at.segment_index) == (segment.ledger_id, segment.segment_index):
        offset, entry_id = at.end_offset, at.next_entry_id
    durable = segment.first_entry_id - 1
    if newest is not NOTHING and newest.ledger_id == segment.ledger_id:
        durable = max(durable, newest.next_entry_id - 1)
    for subscription in opened.manifest.subscriptions.values():
        # An acknowledged entry was durable.
        if subscription.is_durable and subscription.hold.ledger_id == segment.ledger_id:
            durable = max(durable, subscription.hold.entry_id)
    limit = None
    if not is_last:
        durable, limit = segment.last_entry_id, segment.end_offset
    scan = SegmentScan(segment.path, segment.ledger_id, offset, entry_id, durable, limit)
    for frame in scan.frames():
        header = frame.header
        entry = header.first_entry_id
        latest = 0
        for block in frame.blocks:
            stored_id = replay.record(block, Position(header.ledger_id, entry), now_ms)
            opened.incarnations.record(block, header.ledger_id, entry, now_ms, stored_id)
            entry += block.entries
            latest = max(latest, block.publish_time_ms)
        opened.index.add_frame(
            header.ledger_id, segment.segment_index, frame.offset, header.first_entry_id, latest
        )
        opened.manifest.last_batch_size = frame.blocks[-1].batch_size if frame.blocks else 0
    opened.corruptions.extend(scan.corruptions)
    return scan


def _seal(
    manifest: Manifest, ledger: LedgerInfo, segment: SegmentInfo, scan: SegmentScan, now_ms: int
) -> None:
    """End an open ledger where its last entry ends; an empty one is dropped."""
    last = scan.next_entry_id - 1
    if last < 0:
        manifest.apply(LedgersDeleted([ledger.ledger_id]))
        return
    # A read up to lost entries has to meet an end that is missing, also where the file ends with a frame.
    end = scan.end_offset + LOST_END_BYTES * scan.is_end_lost
    manifest.apply(SegmentClosed(ledger.ledger_id, segment.segment_index, end, last))
    size = sum(part.end_offset for part in ledger.segments)
    manifest.apply(LedgerClosed(ledger.ledger_id, last, size, now_ms))


def _drop_lost_end(manifest: Manifest, ledger: LedgerInfo, segment: SegmentInfo, now_ms: int) -> None:
    """End an open ledger before its last segment, whose file is lost, and report it."""
    size = sum(part.end_offset for part in ledger.segments)
    manifest.apply(LedgerClosed(ledger.ledger_id, segment.first_entry_id - 1, size, now_ms))


def _check_presence(opened: OpenedLog, segment: SegmentInfo) -> None:
    """A closed segment that nobody scans must at least be there whole."""
    if segment.last_entry_id < segment.first_entry_id:
        return
    try:
        with SegmentReader(segment.path) as reader:
            if reader.size() < segment.end_offset:
                _report(opened, segment, f"the file ends at {reader.size()} instead of {segment.end_offset}")
            if reader.is_offloaded:
                return  # it would be fetched for that
            header: SegmentHeader = reader.header()
            if header.ledger_id != segment.ledger_id:
                _report(opened, segment, f"the file is one of ledger {header.ledger_id}")
    except (SegmentGone, CorruptData) as error:
        _report(opened, segment, error.text)


def _report(opened: OpenedLog, segment: SegmentInfo, reason: str) -> None:
    opened.corruptions.append(
        Corruption(
            str(segment.path), 0, segment.ledger_id, segment.first_entry_id, segment.last_entry_id, reason
        )
    )


def _sort_out_files(opened: OpenedLog, is_torn: bool) -> None:
    """Count ledger ids above every file; mark the ledgers whose files are left as deleted."""
    manifest = opened.manifest
    files = (path.name for path in manifest.directory.iterdir())
    names = (parse_segment_name(segment_of_note(name) or name) for name in files)
    found = {parsed[0] for parsed in names if parsed is not None}
    for ledger_id in found:
        counter = ledger_id & ((1 << LEDGER_COUNTER_BITS) - 1)
        manifest.next_ledger_counter = max(manifest.next_ledger_counter, counter + 1)
    if not is_torn:
        # Nobody was promised anything in a file the manifest does not list. After a torn end we cannot be
        # sure that the record which listed it is not what was damaged, so the file stays.
        manifest.deleted.update(ledger_id for ledger_id in found if ledger_id not in manifest.ledgers)
    manifest.deleted &= found
