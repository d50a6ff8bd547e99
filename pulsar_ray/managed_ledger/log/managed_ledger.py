"""A partition's log: endless, made of ledgers, owned by one process at a time.

All methods belong to the owner's loop; they touch no disk unless documented. Work is two-phase: `begin_...`
decides and returns a piece of work, `work.run()` does the disk's part on the disk thread (one thread, in
the order of the begins), and `finish_...` or `fail_...` takes the outcome back. At most one append is under
way at a time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.config import Settings
from pulsar_ray.errors import CorruptData, Fenced
from pulsar_ray.format.block import MARKED, BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.frame import HOLDS_MARKED_BLOCKS, encode_frame_header
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk
from pulsar_ray.ledger.owner_lock import HeldLock, take_lock
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.record_log import RecordLog
from pulsar_ray.ledger.segment_file import LedgerWriter, SegmentInfo, segment_name
from pulsar_ray.managed_ledger.log.backlog_search import BacklogSearch
from pulsar_ray.managed_ledger.log.commit import AppendResult, Commit, LogFiles, OpenLedger
from pulsar_ray.managed_ledger.log.ledger_policies import LedgerPolicies, Retention
from pulsar_ray.managed_ledger.log.log_recovery import OpenedLog, open_log
from pulsar_ray.managed_ledger.log.log_state import LogState
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS, LedgerInfo
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    LedgersDeleted,
    ManifestRecord,
    SegmentOpened,
    SequenceIds,
    TopicIdentity,
    to_log,
)
from pulsar_ray.managed_ledger.log.manifest_changes import ManifestChanges
from pulsar_ray.managed_ledger.log.move_note import note_arrival
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.model.message_id import Position, position_of

logger = logging.getLogger(__name__)


__all__ = ["AppendResult", "Commit", "ManagedLedger", "Retention"]
_READ_BYTES = 4 * 1024 * 1024
_FRAME_OVERHEAD = 72
_SPAN_SIZE = 8


class Appender:
    """Begins, finishes and fails appends, one at a time."""

    def __init__(self, state: LogState, files: LogFiles, policies: LedgerPolicies) -> None:
        self._state = state
        self._files = files
        self._policies = policies

    def begin(self, blocks: Sequence[tuple[BlockHeader, Sequence[Buffer]]], now_ms: int) -> Commit:
        """Give the blocks their positions, as one frame.

        Their buffers must not change until the commit is finished.

        A block the incarnations do not classify as New must not be given.
        """
        state = self._state
        if state.in_flight is not None:
            raise RuntimeError("an append is under way already")
        headers: list[BlockHeader] = []
        spans: list[tuple[int, int, int]] = []
        payload: list[Buffer] = []
        length = _FRAME_OVERHEAD + _SPAN_SIZE * len(blocks)
        latest = flags = 0
        for header, buffers in blocks:
            size = header.total_length
            headers.append(header)
            spans.append((size, header.entries, header.message_count))
            payload += buffers
            length += size
            latest = max(latest, header.publish_time_ms)
            flags |= header.flags
        commit = Commit(self._files, headers, now_ms)
        if state.is_checkpoint_due and state.entries_since_checkpoint:
            commit.checkpoint, commit.sequence_ids = state.take_checkpoint()
        commit.max_publish_ms = latest
        commit.frame_length = length
        entry_id = self._place(commit, length)
        ledger_id = commit.ledger_id
        commit.frame_header = encode_frame_header(
            ledger_id,
            self._files.owner.epoch,
            entry_id,
            entry_id - 1,
            now_ms,
            spans,
            HOLDS_MARKED_BLOCKS if flags & MARKED else 0,
        )
        commit.buffers.append(commit.frame_header)
        commit.buffers += payload
        commit.total_bytes += length
        record, sequences = state.incarnations.record, state.sequences
        for header in headers:
            commit.positions.append(position_of((ledger_id, entry_id)))
            if sequences.is_on:
                record(header, ledger_id, entry_id, now_ms, sequences.record(header, now_ms))
            else:
                record(header, ledger_id, entry_id, now_ms)
            entry_id += header.entries
        commit.end_entry_id = entry_id
        state.in_flight = commit
        return commit

    def _place(self, commit: Commit, length: int) -> int:
        """Choose ledger and segment for a frame of that length; returns its first entry id."""
        current, rollover = self._state.open_ledger, self._policies.rollover
        is_full = current is None or current.is_full(rollover, commit.now_ms)
        if current is not None and not is_full and not self._state.ends_next:
            commit.ledger_id = current.ledger_id
            commit.segment_index = current.segment_index
            commit.offset = current.end_offset
            if current.end_offset + length > rollover.segment_bytes:
                commit.segment_index += 1
                self._begin_segment(commit, current.next_entry_id, [current.end_of_segment()])
            return current.next_entry_id
        ended = [] if current is None else current.end_of_ledger(commit.now_ms)
        self._state.ends_next = False
        commit.ledger_id = self._next_ledger_id()
        self._begin_segment(commit, 0, ended)
        return 0

    def _begin_segment(self, commit: Commit, first_entry_id: int, ended: list[ManifestRecord]) -> None:
        state, identity = self._state, self._state.manifest.identity
        ledger_id, index, now_ms = commit.ledger_id, commit.segment_index, commit.now_ms
        if state.has_failed_write:
            commit.ends, commit.after = state.ends_to_write()
        else:
            ended = [*state.ended, *ended]
        commit.records = [*ended, SegmentOpened(ledger_id, index, first_entry_id, now_ms)]
        if state.has_to_rewrite(self._files.log):
            commit.snapshot = state.snapshot()
        epoch = self._files.owner.epoch
        header = SegmentHeader(ledger_id, index, epoch, identity.topic, identity.partition, now_ms)
        commit.segment_path = state.manifest.directory / segment_name(ledger_id, index)
        commit.offset = SEGMENT_HEADER_SIZE
        commit.buffers.append(header.encode())
        commit.total_bytes = SEGMENT_HEADER_SIZE

    def _next_ledger_id(self) -> int:
        manifest = self._state.manifest
        counter = manifest.next_ledger_counter
        if counter >> LEDGER_COUNTER_BITS:
            raise OverflowError(f"{manifest.identity.topic} has used up its ledger ids")
        # Never used twice, also when the append fails: the file may be there.
        manifest.next_ledger_counter = counter + 1
        return (manifest.identity.number << LEDGER_COUNTER_BITS) | counter

    def finish(self, commit: Commit) -> AppendResult:
        """Count the commit's entries as durable, because its run returned: `last_position` includes them."""
        state = self._state
        state.in_flight = None
        if commit.segment_path is not None:
            self._enter_segment(commit)
        end = state.advance(commit)
        state.incarnations.keep()
        if state.sequences.is_on:
            state.sequences.keep()
        frame = (commit.ledger_id, commit.segment_index, commit.offset, commit.frame_header)
        return AppendResult(commit.positions, [frame], end)

    def _enter_segment(self, commit: Commit) -> None:
        """The commit that begins a segment is durable, and so are the records it wrote."""
        state = self._state
        for record in commit.records:
            state.manifest.apply(record)
        state.ended = []
        state.has_failed_write = False
        current = state.open_ledger
        if current is None or current.ledger_id != commit.ledger_id:
            current = state.open_ledger = OpenLedger(commit.ledger_id, commit.now_ms)
        current.segment_index = commit.segment_index
        current.segment_first_entry_id = current.next_entry_id
        state.segments_changed()

    def fail(self, commit: Commit) -> None:
        """End the ledger at its durable end, because the commit's run raised.

        The next append begins another ledger.

        The same blocks may be appended again. Nothing is retried on the file, and nothing in it is believed.
        Until the next append has made that end durable, which it does before it writes, a restart may find
        the blocks stored.
        """
        state = self._state
        state.in_flight = None
        if commit.are_ends_written:
            state.ended = []
        state.has_failed_write = True
        state.incarnations.take_back()
        state.sequences.take_back()
        if commit.checkpoint is not None:
            state.checkpoint_failed(commit.checkpoint, commit.sequence_ids)
        current = state.open_ledger
        if current is None or current.ledger_id != commit.ledger_id:
            # Whether the new ledger got into the manifest is unknown.
            state.end([LedgersDeleted([commit.ledger_id])])
        state.end_open_ledger(commit.now_ms)


class ManagedLedger:
    """The log of one partition, with its subscription registry and producer incarnations."""

    def __init__(self, opened: OpenedLog, files: LogFiles, settings: Settings) -> None:
        self.policies = LedgerPolicies(settings)
        """Of the topic; they may change while the log is open."""
        self._files = files
        self.state = LogState(opened, settings)
        """For those who are told of each append; the rest asks the ledger."""
        appender = Appender(self.state, files, self.policies)
        # Of the parts themselves: every message goes through them.
        self.begin_append = appender.begin
        self.finish_append = appender.finish
        self.fail_append = appender.fail
        self.show = self.state.show
        self.segments = self.state.readable_segments
        self.check_owner = files.owner.check
        self.check_present = files.owner.check_present
        self.changes = ManifestChanges(self.state, files, self.policies)
        """Subscriptions with their holds, leases, trimming."""
        self.directory = opened.manifest.directory
        self.disk = files.disk
        self.identity = opened.manifest.identity
        self.epoch = opened.owner.epoch
        self.incarnations = opened.incarnations
        self.sequences = opened.sequences
        """The sequence ids that producers have stored; none while deduplication is off."""
        self.corruptions = opened.corruptions
        """Confirmed entries that recovery found unreadable."""

    @classmethod
    def open(
        cls,
        directory: Path,
        identity: TopicIdentity,
        settings: Settings,
        now_ms: int,
        *,
        must_exist: bool = False,
        acquire_lock: Callable[[Path], HeldLock] = take_lock,
        disk: Disk = SYSTEM_DISK,
        first_ledger: int = 0,
    ) -> ManagedLedger:
        """Own the log and recover it; touches the disk.

        A former owner is killed, or fenced, when it returns. No ledger gets a counter below `first_ledger`.

        Raises WrongNode when it must exist and does not, CorruptData when manifest or epoch are damaged,
        DataDirectoryInUse, NetworkFileSystem, NotOurDataDirectory. Corrupt entries only show in
        `corruptions`. OSError for a new log that the disk does not take; one that was there before is open
        all the same, and `has_begun` once the disk has taken a manifest (ADR 0072).
        """
        opened = open_log(directory, identity, now_ms, must_exist, acquire_lock, disk)
        try:
            note_arrival(directory)
        except BaseException:
            # This process would be kept out by the lock that nobody gives back.
            opened.owner.close()
            raise
        manifest = opened.manifest
        manifest.next_ledger_counter = max(manifest.next_ledger_counter, first_ledger)
        log = RecordLog(opened.owner, MANIFEST, disk)
        ledger = cls(opened, LogFiles(opened.owner, log, LedgerWriter(disk), disk), settings)
        beginning = ledger.changes.begin_log()
        assert beginning is not None
        try:
            beginning.run()
        except BaseException as error:
            if opened.is_new or not isinstance(error, OSError):
                log.close()
                opened.owner.close()
                raise
            ledger.changes.fail(beginning)
            logger.warning("%s: the disk does not take a manifest: %s", directory, error)
        else:
            ledger.changes.finish(beginning)
        return ledger

    @property
    def has_begun(self) -> bool:
        """Whether this owner has a manifest of its own.

        Until then that of the owner before holds, and each change that is begun tries to write one.
        """
        return self.changes.has_begun

    def begin_recorded_end(self) -> RecordedEnd | None:
        """Record how far the log is durable; `run` it behind what was begun before.

        None: that is recorded, or the next append is to do it.
        """
        state, log = self.state, self._files.log
        if state.in_flight is not None:
            state.is_checkpoint_due = True
            return None
        if log.is_broken or not state.entries_since_checkpoint:
            return None
        return RecordedEnd(log, *state.take_checkpoint())

    def close(self) -> None:
        """End the open ledger cleanly and give the log up.

        It touches the disk; nothing may be under way.

        Nothing durable depends on it: it only spares the next owner a scan.
        """
        state = self.state
        if state.in_flight is None and not self._files.owner.is_fenced:
            if state.open_ledger is not None:
                state.end_open_ledger(state.open_ledger.last_append_ms)
            with contextlib.suppress(OSError, Fenced):
                self._files.log.rewrite([to_log(record) for record in state.snapshot()])
        self._files.writer.close()
        self._files.log.close()
        self._files.owner.close()

    # ---- reading

    @property
    def last_position(self) -> Position:
        """The last durable entry, EARLIEST if there never was one."""
        return self.state.manifest.last_position

    @property
    def first_position(self) -> Position:
        """The first entry there is; where the next one would stand if there is none."""
        return self.state.first_position

    @property
    def trimmed_position(self) -> Position:
        """The last entry that was trimmed, EARLIEST if none was."""
        return self.state.manifest.trimmed

    @property
    def appended_bytes(self) -> int:
        """Bytes of all frames that became durable since the log was opened."""
        return self.state.appended_bytes

    @property
    def readable_position(self) -> Position:
        """The last entry that readers may be shown, EARLIEST if there never was one.

        It is durable, and may be behind `last_position` as long as whoever owns the log wants it to be
        durable elsewhere, too: see `show`.
        """
        return self.state.readable.position

    def ledgers(self) -> list[LedgerInfo]:
        """The ledgers, for stats.

        Of the open one only id and times are up to date.
        """
        return list(self.state.manifest.ledgers.values())

    def index_points(self) -> list[IndexPoint]:
        """Where frames start, in order.

        There is one point for every 4 MiB or 4,000 entries, and for each segment.
        """
        return list(self.state.index.points)

    def last_message(self) -> dict[str, Any]:
        """Return the position of the last readable entry, and how many messages its batch has.

        The position is [-1, -1] if there is none, the size 0 unless the entry is a batch.
        """
        readable = self.state.readable
        return {"position": list(readable.position), "batch_size": readable.batch_size}

    def begin_backlog(self, start: Position) -> BacklogSearch:
        """Search and measure what stands at a position and behind; `run` it on any thread."""
        state = self.state
        segments = state.readable_segments()
        points = list(state.index.points)
        return BacklogSearch(start, state.index.floor(start), segments, state.readable.position, points)

    def begin_position_at_time(self, time_ms: int) -> TimeSearch:
        """Search the first entry published at or after a time; `run` it on any thread."""
        state = self.state
        floor = state.index.floor_of_time(time_ms)
        return TimeSearch(time_ms, floor, state.readable_segments(), state.readable.position)


class RecordedEnd:
    """Notes in the manifest how far the log is durable, between two appends.

    `run` writes the note on the disk thread; nothing has to be finished behind it. A file that is cut
    before that end while nobody owns the log is then known to have lost confirmed entries (ADR 0081). The
    note is not synced: it outlasts the process, and behind a power cut nothing depends on it.
    """

    def __init__(self, log: RecordLog, checkpoint: Checkpoint, sequence_ids: Sequence[SequenceIds]) -> None:
        self._log = log
        self._records: list[ManifestRecord] = [*sequence_ids, checkpoint]

    def run(self) -> None:
        """Write it, if the disk takes it.

        A log that had a failed write is rewritten by the next change, with all that this would say.
        """
        with contextlib.suppress(OSError):
            self._log.append([to_log(record) for record in self._records], sync=False)


class TimeSearch:
    """Finds the first message published at or after a time.

    `run` it on any thread: only what was durable when it began is read.
    """

    def __init__(
        self, time_ms: int, start: IndexPoint | None, segments: Sequence[SegmentInfo], end: Position
    ) -> None:
        self._time_ms = time_ms
        self._start = start
        self._segments = segments
        self._end = end

    def run(self) -> Position:
        """The entry, or the position behind the last one if all are older.

        Unreadable ones are passed.
        """
        start = self._start
        for segment in self._segments:
            offset = SEGMENT_HEADER_SIZE
            if start is not None:
                place = (segment.ledger_id, segment.segment_index)
                if place < (start.ledger_id, start.segment_index):
                    continue
                if place == (start.ledger_id, start.segment_index):
                    offset = start.offset
            try:
                found = self._search(segment, offset)
            except (SegmentGone, CorruptData):
                continue
            if found is not None:
                return found
        return self._end.next()

    def _search(self, segment: SegmentInfo, offset: int) -> Position | None:
        with SegmentReader(segment.path) as reader:
            while offset < segment.end_offset:
                for frame in reader.read_frames(offset, segment.end_offset, _READ_BYTES):
                    at, entry_id = frame.offset + frame.header.header_length, frame.header.first_entry_id
                    for span in frame.header.blocks:
                        if reader.read_block_header(at, span.length).publish_time_ms >= self._time_ms:
                            return Position(segment.ledger_id, entry_id)
                        at += span.length
                        entry_id += span.entries
                    offset = at
        return None
