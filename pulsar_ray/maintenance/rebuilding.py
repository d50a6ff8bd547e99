"""Rebuild the manifest and the cursors of a partition from what is intact."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.offloaded import is_stored, segment_of_note
from pulsar_ray.ledger.owner_lock import take_free_lock
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.record_log import RecordLog, salvage_log
from pulsar_ray.ledger.recovery import SegmentScan, find_frame
from pulsar_ray.ledger.segment_file import parse_segment_name
from pulsar_ray.managed_ledger.compaction.compacted_form import newest_form
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory, subscription_numbers
from pulsar_ray.managed_ledger.cursor.cursor_store import (
    CHANGES,
    LOG_NAME,
    SNAPSHOT,
    apply_changes,
    check_record_types,
    cursor_from_snapshot,
    snapshot_payload,
)
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.managed_ledger.log.manifest.manifest import Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST, KnownSequences, ManifestContent
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    Compacted,
    DeduplicationSwitched,
    IncarnationRecord,
    LedgerClosed,
    LedgersDeleted,
    ManifestRecord,
    SegmentClosed,
    SegmentOpened,
    SequenceIds,
    SequenceIdsForgotten,
    Subscription,
    SubscriptionRemoved,
    TopicIdentity,
    from_log,
    to_log,
)
from pulsar_ray.managed_ledger.log.partition_directories import identity_of_segments
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from pulsar_ray.model.topic_name import TopicName, is_system_topic


@dataclass
class PartitionContent:
    """A manifest, and what it says of producers.

    The next owner scans all ledgers and finds the rest there: where frames stand, and who wrote last.
    """

    manifest: Manifest
    incarnations: list[IncarnationRecord] = field(default_factory=list)
    retired: set[int] = field(default_factory=set)
    sequences: KnownSequences = field(default_factory=KnownSequences)

    @classmethod
    def of(cls, content: ManifestContent) -> PartitionContent:
        """The contents of an intact manifest."""
        found = cls(content.manifest, list(content.incarnations), sequences=content.sequences)
        for checkpoint in (*content.folded, content.newest):
            found.add_checkpoint(checkpoint)
        return found

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Take what a checkpoint says of producers."""
        self.incarnations += checkpoint.written
        self.retired.update(checkpoint.retired)

    def write(self) -> None:
        """Make it the partition's manifest, durably; nobody may own the directory."""
        directory: Path = self.manifest.directory
        owner = DirectoryOwner.open(directory, create=True, acquire_lock=take_free_lock)
        log = RecordLog(owner, MANIFEST)
        try:
            log.rewrite([to_log(record) for record in self._records()])
        finally:
            log.close()
            owner.close()

    def _records(self) -> Iterator[ManifestRecord]:
        manifest, sequences = self.manifest, self.sequences
        yield from manifest.snapshot()
        yield from self.incarnations
        if sequences.switched_on is not None:
            yield DeduplicationSwitched(True, *sequences.switched_on)
            for prefix, position in sequences.forgotten:
                yield SequenceIdsForgotten(prefix, *position)
            yield from sequences.records
        first = next(iter(manifest.ledgers.values()), None)
        place = (manifest.last_position.ledger_id + 1, 0, SEGMENT_HEADER_SIZE, 0)
        if first is not None:
            segment = first.segments[0]
            place = (*segment[:2], SEGMENT_HEADER_SIZE, segment.first_entry_id)
        yield Checkpoint(*place, 0, [], {}, sorted(self.retired))


_LEDGERS_PASSED_OVER = 1024


@dataclass
class RebuiltManifest:
    """A partition's contents as its files tell them."""

    content: PartitionContent
    left_out: list[Path] = field(default_factory=list)
    """Segment files without an entry, or of ledgers that were deleted."""
    lost_subscriptions: list[int] = field(default_factory=list)
    """Numbers of cursors that do not say whose they are."""


class _Segment(NamedTuple):
    ledger_id: int
    number: int
    path: Path


class _Known:
    """The records that are left of the damaged manifest."""

    def __init__(self, directory: Path, content: PartitionContent) -> None:
        self.opened: dict[tuple[int, int], SegmentOpened] = {}
        self.closed: dict[tuple[int, int], SegmentClosed] = {}
        self.ledgers_closed: dict[int, LedgerClosed] = {}
        self.removed: set[int] = set()
        self.tells_of_compaction = False
        """Whether what was compacted, or that nothing is, stands in a record that is left."""
        self.durable: dict[int, int] = {}
        """The last entry of each ledger that was certainly there."""
        for record in salvage_log(directory, MANIFEST):
            self._take(from_log(record, str(directory)), content)

    def _take(self, record: ManifestRecord, content: PartitionContent) -> None:
        if isinstance(record, SegmentOpened):
            self.opened[record.ledger_id, record.segment_index] = record
        elif isinstance(record, SegmentClosed):
            self.closed[record.ledger_id, record.segment_index] = record
            self.prove(Position(record.ledger_id, record.last_entry_id))
        elif isinstance(record, LedgerClosed):
            self.ledgers_closed[record.ledger_id] = record
            self.prove(Position(record.ledger_id, record.last_entry_id))
        elif isinstance(record, Checkpoint):
            content.add_checkpoint(record)
            self.prove(Position(record.ledger_id, record.next_entry_id - 1))
        elif isinstance(record, IncarnationRecord):
            content.incarnations.append(record)
        elif isinstance(record, DeduplicationSwitched | SequenceIds | SequenceIdsForgotten):
            content.sequences.add(record)
        else:
            if isinstance(record, SubscriptionRemoved):
                self.removed.add(record.number)
            self.tells_of_compaction |= isinstance(record, Compacted)
            content.manifest.apply(record)

    def prove(self, position: Position) -> None:
        """Note that everything of a ledger up to there was durable."""
        if position != LATEST:
            known = self.durable.get(position.ledger_id, -1)
            self.durable[position.ledger_id] = max(known, position.entry_id)


def rebuild_manifest(
    directory: Path, cluster_id: str, by_catalog: TopicIdentity | None
) -> RebuiltManifest | None:
    """Make a manifest's contents anew; None if nothing tells whose the directory is. Only reads.

    Stored entries decide, and records that are left of the damaged manifest add what files do not tell. A
    segment is taken in whoever wrote it: a message that nobody was promised may come, none is lost. Damaged
    entries keep their places.

    Raises UnsupportedFormatVersion, OSError.
    """
    content = PartitionContent(Manifest(directory))
    known = _Known(directory, content)
    manifest = content.manifest
    if not manifest.identity.topic:
        identity = identity_of_segments(directory) or by_catalog
        if identity is None:
            return None
        manifest.identity = TopicIdentity(*identity[:3], cluster_id)
    rebuilt = RebuiltManifest(content)
    if not known.tells_of_compaction and (form := newest_form(directory)) is not None:
        # The log that it was made of may be gone.
        manifest.apply(form)
    cursors = dict(_cursors(directory, known.removed))
    for number, cursor in cursors.items():
        known.prove(cursor.mark_delete)
        if cursor.deleted:
            known.prove(cursor.deleted.end)
        _register(manifest, number, cursor, rebuilt)
    for _, segments in groupby(_segments(directory, known), key=lambda segment: segment.ledger_id):
        _add_ledger(list(segments), known, rebuilt)
    # There may have been ledgers of which nothing is left: their ids are not to be granted again.
    manifest.next_ledger_counter += _LEDGERS_PASSED_OVER
    is_unknown = content.sequences.switched_on is None and not content.sequences.records
    if is_unknown and not is_system_topic(TopicName.parse(manifest.identity.topic)):
        # Nothing tells whether it was on. The partition switches it off when it starts, if it is.
        # Were it off, repeats of what stands here would be stored twice.
        content.sequences.add(DeduplicationSwitched(True, *EARLIEST))
    return rebuilt


def _cursors(directory: Path, removed: set[int]) -> Iterator[tuple[int, ManagedCursor]]:
    for number in subscription_numbers(directory):
        if number not in removed:
            yield number, salvaged_cursor(directory, number, None)


def _register(manifest: Manifest, number: int, cursor: ManagedCursor, rebuilt: RebuiltManifest) -> None:
    """Enter a cursor's subscription, with a hold that no message is trimmed below."""
    found = manifest.subscriptions.get(number)
    name = cursor.subscription.name
    if found is not None:
        hold = min(found.hold, cursor.mark_delete) if name else found.hold
        manifest.apply(found._replace(hold_ledger_id=hold.ledger_id, hold_entry_id=hold.entry_id))
    elif name:
        properties = cursor.subscription.properties
        manifest.apply(Subscription(number, name, True, *cursor.mark_delete, properties))
    else:
        rebuilt.lost_subscriptions.append(number)
    manifest.next_subscription = max(manifest.next_subscription, number + 1)


def _segments(directory: Path, known: _Known) -> list[_Segment]:
    """All segments that are there, and closed ones that are lost."""
    names = {segment_of_note(path.name) or path.name for path in directory.iterdir()}
    found = {parsed: directory / name for name in names if (parsed := parse_segment_name(name))}
    deleted = {key for key in known.closed if key not in found and key in known.opened}
    missing = {key: directory / f"{key[0]}-{key[1]}.seg" for key in deleted}
    return [_Segment(*key, path) for key, path in sorted({**found, **missing}.items())]


def _add_ledger(segments: list[_Segment], known: _Known, rebuilt: RebuiltManifest) -> None:
    """Add a closed ledger; without an entry its files are left out."""
    manifest = rebuilt.content.manifest
    ledger_id = segments[0].ledger_id
    if ledger_id in manifest.deleted:
        rebuilt.left_out += [segment.path for segment in segments if is_stored(segment.path)]
        return
    firsts = [_first_entry(segment, known) for segment in segments]
    size, last, closed_ms = 0, -1, 0
    for i, segment in enumerate(segments):
        first = firsts[i] if i and firsts[i] > last else last + 1
        proven = firsts[i + 1] - 1 if i + 1 < len(segments) else known.durable.get(ledger_id, -1)
        closed = known.closed.get(segment[:2])
        end, found, time_ms = _scan(segment, first, max(proven, first - 1), closed)
        if found < first:
            rebuilt.left_out += [segment.path] if is_stored(segment.path) else []
            continue
        opened_ms = _opened_ms(segment, known)
        manifest.apply(SegmentOpened(ledger_id, segment.number, first, opened_ms))
        manifest.apply(SegmentClosed(ledger_id, segment.number, end, found))
        size, last, closed_ms = size + end, found, max(closed_ms, time_ms, opened_ms)
    if last < 0:
        manifest.apply(LedgersDeleted([ledger_id]))
        return
    record = known.ledgers_closed.get(ledger_id)
    manifest.apply(LedgerClosed(ledger_id, last, size, record.closed_ms if record else closed_ms or 1))


def _scan(segment: _Segment, first: int, proven: int, closed: SegmentClosed | None) -> tuple[int, int, int]:
    """Where a segment ends, its last entry, and the time of its last frame."""
    if closed is not None and not is_stored(segment.path):
        return closed.end_offset, closed.last_entry_id, 0
    limit = None
    if closed is not None:
        limit, proven = closed.end_offset, closed.last_entry_id
    scan = SegmentScan(segment.path, segment.ledger_id, SEGMENT_HEADER_SIZE, first, proven, limit)
    time_ms = 0
    for frame in scan.frames():
        time_ms = max(time_ms, frame.header.broker_time_ms)
    return scan.end_offset, scan.next_entry_id - 1, time_ms


def _first_entry(segment: _Segment, known: _Known) -> int:
    """The first entry of a segment, by the manifest or by its first sound frame."""
    if not segment.number:
        return 0
    if (record := known.opened.get(segment[:2])) is not None:
        return record.first_entry_id
    with SegmentReader(segment.path) as reader:
        at = find_frame(reader, SEGMENT_HEADER_SIZE - 8, reader.size(), segment.ledger_id, 0)
        if at is None:
            return 0
        return reader.read_frames(at, reader.size(), 1)[0].header.first_entry_id


def _opened_ms(segment: _Segment, known: _Known) -> int:
    if (record := known.opened.get(segment[:2])) is not None:
        return record.now_ms
    try:
        with SegmentReader(segment.path) as reader:
            return reader.header().created_ms
    except CorruptData:
        return 1


def salvaged_cursor(log_directory: Path, number: int, registered: Subscription | None) -> ManagedCursor:
    """Read a cursor past damage in its log.

    Without any record it begins at the subscription's hold.

    Acknowledgments are facts, so each intact record counts. Those that stood in a damaged record alone are
    forgotten: their messages come again. Without a registration the name is "" if the log does not tell it.
    Raises UnsupportedFormatVersion, OSError.
    """
    cursor = ManagedCursor(CursorSubscription(""))
    if registered is not None:
        subscription = CursorSubscription(registered.name, True, registered.properties)
        cursor = ManagedCursor(subscription, registered.hold)
    directory = cursor_directory(log_directory, number)
    records = salvage_log(directory, LOG_NAME) if directory.is_dir() else []
    check_record_types(records, str(directory))
    for kind, payload in records:
        # Intact, and yet none of a cursor: it tells nothing.
        with contextlib.suppress(KeyError, IndexError, TypeError, ValueError, OverflowError):
            if kind == SNAPSHOT:
                found = cursor_from_snapshot(payload)
                if registered is not None and found.subscription.name != registered.name:
                    return cursor
                cursor = found
            elif kind == CHANGES:
                # The record that told of a seek may be lost.
                is_reset = payload["g"] != cursor.generation
                apply_changes(cursor, {**payload, "r": True} if is_reset else payload)
    return cursor


def write_cursor(log_directory: Path, number: int, cursor: ManagedCursor) -> None:
    """Make it the subscription's cursor, durably; nobody may own the directory."""
    directory = cursor_directory(log_directory, number)
    owner = DirectoryOwner.open(directory, create=True, acquire_lock=take_free_lock)
    log = RecordLog(owner, LOG_NAME)
    try:
        log.rewrite([(SNAPSHOT, snapshot_payload(cursor))])
    finally:
        log.close()
        owner.close()
