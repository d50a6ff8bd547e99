"""A partition's log: endless, made of ledgers, owned by one process at a time.

All methods belong to the owner's loop; they touch no disk unless documented. Work is two-phase: `begin_...`
decides and returns a piece of work, `work.run()` does the disk's part on the commit thread (one thread, in
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
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk
from pulsar_ray.ledger.ledger_writer import LedgerWriter
from pulsar_ray.ledger.owner_lock import HeldLock, take_lock
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.record_log import RecordLog
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.appender import Appender
from pulsar_ray.managed_ledger.log.backlog_search import BacklogSearch
from pulsar_ray.managed_ledger.log.commit import AppendResult, Commit, LogEnd, LogFiles
from pulsar_ray.managed_ledger.log.ledger_policies import LedgerPolicies
from pulsar_ray.managed_ledger.log.log_recovery import OpenedLog, open_log
from pulsar_ray.managed_ledger.log.log_state import LogState
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    ManifestRecord,
    SequenceIds,
    TopicIdentity,
    to_log,
)
from pulsar_ray.managed_ledger.log.manifest_changes import ManifestChanges
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.managed_ledger.log.retention import Retention
from pulsar_ray.model.message_id import Position

logger = logging.getLogger(__name__)

__all__ = ["AppendResult", "Commit", "ManagedLedger", "Retention"]
_READ_BYTES = 4 * 1024 * 1024


class ManagedLedger:
    """The log of one partition, with its subscription registry and producer incarnations."""

    def __init__(self, opened: OpenedLog, files: LogFiles, settings: Settings) -> None:
        self.policies = LedgerPolicies(settings)
        """Of the topic; they may change while the log is open."""
        self._files = files
        self._state = LogState(opened, settings)
        appender = Appender(self._state, files, self.policies)
        # Of the appender itself: every message goes through them.
        self.begin_append = appender.begin
        self.finish_append = appender.finish
        self.fail_append = appender.fail
        self.changes = ManifestChanges(self._state, files, self.policies)
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
    ) -> ManagedLedger:
        """Own the log and recover it; touches the disk.

        A former owner is killed, or fenced, when it returns.

        Raises WrongNode when it must exist and does not, CorruptData when manifest or epoch are damaged,
        DataDirectoryInUse, NetworkFileSystem, NotOurDataDirectory. Corrupt entries only show in
        `corruptions`. OSError for a new log that the disk does not take; one that was there before is open
        all the same, and `has_begun` once the disk has taken a manifest (ADR 0072).
        """
        opened = open_log(directory, identity, now_ms, must_exist, acquire_lock, disk)
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
        state, log = self._state, self._files.log
        if state.in_flight is not None:
            state.want_checkpoint()
            return None
        if log.is_broken or (checkpoint := state.checkpoint_if_due(is_wanted=True)) is None:
            return None
        return RecordedEnd(log, *checkpoint)

    def check_owner(self) -> None:
        """Raise Fenced if the log has a newer owner."""
        self._files.owner.check()

    def check_present(self) -> None:
        """Raise WrongNode if the directory was deleted under the log; looks at the disk."""
        self._files.owner.check_present()

    def close(self) -> None:
        """End the open ledger cleanly and give the log up.

        It touches the disk; nothing may be under way.

        Nothing durable depends on it: it only spares the next owner a scan.
        """
        state = self._state
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
        return self._state.manifest.last_position

    @property
    def first_position(self) -> Position:
        """The first entry there is; where the next one would stand if there is none."""
        return self._state.first_position()

    @property
    def trimmed_position(self) -> Position:
        """The last entry that was trimmed, EARLIEST if none was."""
        return self._state.manifest.trimmed

    @property
    def segments_version(self) -> int:
        """Rises whenever segments come or go."""
        return self._state.segments_version

    @property
    def appended_bytes(self) -> int:
        """Bytes of all frames that became durable since the log was opened."""
        return self._state.appended_bytes

    @property
    def readable_position(self) -> Position:
        """The last entry that readers may be shown, EARLIEST if there never was one.

        It is durable, and may be behind `last_position` as long as whoever owns the log wants it to be
        durable elsewhere, too: see `show`.
        """
        return self._state.readable.position

    def show(self, end: LogEnd) -> None:
        """Let readers see the log up to `AppendResult.end`; an earlier end changes nothing.

        Whatever reads the log ends there: positions, segments, searches.
        """
        self._state.show(end)

    def segments(self) -> list[SegmentInfo]:
        """The segments with readable entries, in order; only the last one's ends can still move."""
        return self._state.readable_segments()

    def ledgers(self) -> list[LedgerInfo]:
        """The ledgers, for stats.

        Of the open one only id and times are up to date.
        """
        return list(self._state.manifest.ledgers.values())

    def index_points(self) -> list[IndexPoint]:
        """Where frames start, in order.

        There is one point for every 4 MiB or 4,000 entries, and for each segment.
        """
        return list(self._state.index.points)

    def last_message(self) -> dict[str, Any]:
        """Return the position of the last readable entry, and how many messages its batch has.

        The position is [-1, -1] if there is none, the size 0 unless the entry is a batch.
        """
        readable = self._state.readable
        return {"position": list(readable.position), "batch_size": readable.batch_size}

    def begin_backlog(self, start: Position) -> BacklogSearch:
        """Search and measure what stands at a position and behind; `run` it on any thread."""
        state = self._state
        segments = state.readable_segments()
        return BacklogSearch(start, state.index.floor(start), segments, state.readable.position)

    def begin_position_at_time(self, time_ms: int) -> TimeSearch:
        """Search the first entry published at or after a time; `run` it on any thread."""
        state = self._state
        floor = state.index.floor_of_time(time_ms)
        return TimeSearch(time_ms, floor, state.readable_segments(), state.readable.position)


class RecordedEnd:
    """Notes in the manifest how far the log is durable, between two appends.

    `run` writes the note on the commit thread; nothing has to be finished behind it. A file that is cut
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
