"""Everything a partition's owner knows of its log, between recovery and the next write. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_ray.config import Settings
from pulsar_ray.ledger.record_log import RecordLog
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.commit import Commit, LogEnd, ManifestChange, OpenLedger
from pulsar_ray.managed_ledger.log.log_recovery import OpenedLog
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    DeduplicationSwitched,
    IncarnationRecord,
    LedgerClosed,
    ManifestRecord,
    SegmentClosed,
    SequenceIds,
    SequenceIdsForgotten,
)
from pulsar_ray.model.message_id import Position, position_of

_BEHIND_ALL_SEGMENTS = 1 << 32
_COMPACT_ABOVE_BYTES = 1024 * 1024
_COMPACT_FACTOR = 4


class LogState:
    """Manifest, index and incarnations, the open ledger, and the work that is under way."""

    def __init__(self, opened: OpenedLog, settings: Settings) -> None:
        self.manifest = opened.manifest
        self.index = opened.index
        self.incarnations = opened.incarnations
        self.sequences = opened.sequences
        self.open_ledger: OpenLedger | None = None
        self.in_flight: Commit | None = None
        self.unfinished: list[ManifestChange] = []
        self.ended: list[ManifestRecord] = []
        """Ends of ledgers that hold already, and are written with the next records."""
        self.has_failed_write = False
        """Whether an append has failed, and the end of its ledger may not be durable."""
        self.ends_next = False
        """Whether the next append begins another ledger."""
        self.segments_version = 0
        """Rises whenever segments come or go."""
        self.appended_bytes = 0
        """Of all frames since the log was opened."""
        self._closed_segments: list[SegmentInfo] | None = None
        self.readable = self._end_at_opening()
        """How far the log may be shown; at its opening all that is durable."""
        self._checkpoint_bytes = settings.index_checkpoint_bytes
        self._checkpoint_entries = settings.index_checkpoint_entries
        self._checkpointed_points = len(opened.index.points)
        self._bytes_since_checkpoint = 0
        self.entries_since_checkpoint = 0
        self.is_checkpoint_due = False
        """Whether the next append is to bring a checkpoint, behind so many bytes or entries."""
        self.look_for_first()

    # ---- positions

    @property
    def last_position(self) -> Position:
        return self.manifest.last_position

    def look_for_first(self) -> None:
        """Note where the log begins: ledgers came or went, or are being deleted."""
        leaving = self.leaving()
        ledgers = (ledger_id for ledger_id in self.manifest.ledgers if ledger_id not in leaving)
        first = next(ledgers, None)
        self.first_position = self.last_position.next() if first is None else Position(first, 0)
        """The first entry there is; where the next one would stand if there is none."""

    def leaving(self) -> set[int]:
        """Ledgers whose deletion has begun: nobody may be sent there any more."""
        return {ledger_id for change in self.unfinished for ledger_id in change.deleted}

    def segments(self) -> list[SegmentInfo]:
        """The segments that hold durable entries, in order."""
        if self._closed_segments is None:
            self._closed_segments = [
                segment
                for ledger in self.manifest.ledgers.values()
                for segment in ledger.segments
                if segment.last_entry_id >= segment.first_entry_id
            ]
        current = self.open_ledger
        if current is None:
            return list(self._closed_segments)
        last = SegmentInfo(
            current.ledger_id,
            current.segment_index,
            self.manifest.directory,
            current.segment_first_entry_id,
            current.end_offset,
            current.next_entry_id - 1,
        )
        return [*self._closed_segments, last]

    def _end_at_opening(self) -> LogEnd:
        manifest, known = self.manifest, self.segments()
        index, offset = (known[-1].segment_index, known[-1].end_offset) if known else (-1, 0)
        return LogEnd(manifest.last_position, index, offset, manifest.last_batch_size)

    def show(self, end: LogEnd) -> None:
        """Let readers see the log up to `AppendResult.end`; an earlier end changes nothing.

        Whatever reads the log ends there: positions, segments, searches.
        """
        before = self.readable
        if end.position <= before.position:
            return
        self.readable = end
        if (end.position.ledger_id, end.segment_index) != (before.position.ledger_id, before.segment_index):
            self.segments_version += 1

    def readable_segments(self) -> list[SegmentInfo]:
        """Return the segments that hold readable entries, in order.

        The last one ends at the readable end, and only its ends can still move.
        """
        segments, (position, index, end_offset, _) = self.segments(), self.readable
        if position == self.last_position:
            return segments
        last = (position.ledger_id, index)
        shown = [segment for segment in segments if (segment.ledger_id, segment.segment_index) <= last]
        if shown and (shown[-1].ledger_id, shown[-1].segment_index) == last:
            shown[-1] = shown[-1]._replace(end_offset=end_offset, last_entry_id=position.entry_id)
        return shown

    def segments_changed(self) -> None:
        self._closed_segments = None
        self.segments_version += 1
        self.look_for_first()

    # ---- the end of the log

    def advance(self, commit: Commit) -> LogEnd:
        """Count a commit's entries as durable, and return the end of the log behind them."""
        current, manifest = self.open_ledger, self.manifest
        assert current is not None
        first, length = current.next_entry_id, commit.frame_length
        entries = commit.end_entry_id - commit.positions[0].entry_id
        current.next_entry_id = first + entries
        current.end_offset = end_offset = commit.offset + length
        current.size_bytes += commit.total_bytes
        current.last_append_ms = commit.now_ms
        manifest.last_position = position_of((commit.ledger_id, first + entries - 1))
        manifest.last_batch_size = commit.headers[-1].batch_size
        self.index.add_frame(
            commit.ledger_id, commit.segment_index, commit.offset, first, commit.max_publish_ms
        )
        self.appended_bytes += length
        self._bytes_since_checkpoint += length
        self.entries_since_checkpoint += entries
        if (
            self._bytes_since_checkpoint >= self._checkpoint_bytes
            or self.entries_since_checkpoint >= self._checkpoint_entries
        ):
            self.is_checkpoint_due = True
        return LogEnd(manifest.last_position, commit.segment_index, end_offset, manifest.last_batch_size)

    def end_open_ledger(self, now_ms: int) -> None:
        """The open ledger ends at its durable end; nothing more is written to it."""
        current, self.open_ledger = self.open_ledger, None
        self.ends_next = False
        if current is not None:
            self.end(current.end_of_ledger(now_ms))

    def end(self, records: Iterable[ManifestRecord]) -> None:
        """Take records that hold from now on, whenever they are written."""
        for record in records:
            self.manifest.apply(record)
            self.ended.append(record)
        self.segments_changed()

    def ends_to_write(self) -> tuple[list[ManifestRecord], list[ManifestChange]]:
        """Return the ends that must be durable before another ledger is begun.

        With the changes under way that write some of them, or delete those ledgers.
        """
        leaving = self.leaving()
        after = [change for change in self.unfinished if change.ends]
        ends: list[ManifestRecord] = []
        for record in self.ended:
            if isinstance(record, SegmentClosed | LedgerClosed):
                if record.ledger_id in leaving:
                    after += (change for change in self.unfinished if record.ledger_id in change.deleted)
                    continue
                if record.ledger_id not in self.manifest.ledgers:
                    continue  # it was deleted meanwhile
            ends.append(record)
        return ends, after

    # ---- checkpoints and snapshots

    def has_to_rewrite(self, log: RecordLog) -> bool:
        """Whether the manifest is to begin anew with a snapshot.

        It is when its log broke or became long.
        """
        is_long = log.size > max(_COMPACT_FACTOR * log.snapshot_size, _COMPACT_ABOVE_BYTES)
        return (is_long or log.is_broken) and self.in_flight is None

    def take_checkpoint(self) -> tuple[Checkpoint, list[SequenceIds]]:
        """Make a checkpoint of what is durable now.

        The records of deduplication come with it, to stand before it.
        """
        checkpoint = self._checkpoint(self._checkpointed_points, self.incarnations.take_touched())
        self._checkpointed_points += len(checkpoint.points)
        self._bytes_since_checkpoint = self.entries_since_checkpoint = 0
        self.is_checkpoint_due = False
        sequence_ids = self.sequences.unsaved()
        self.sequences.saved()
        return checkpoint, sequence_ids

    def checkpoint_failed(self, checkpoint: Checkpoint, sequence_ids: Iterable[SequenceIds]) -> None:
        """Keep the records of a checkpoint that failed for the next one."""
        self._checkpointed_points = max(self._checkpointed_points - len(checkpoint.points), 0)
        self.incarnations.put_back(checkpoint.written)
        self.sequences.save_again(sequence_ids)

    def forget_points(self) -> None:
        """Drop the index points of ledgers that are gone."""
        before = len(self.index.points)
        self.index.forget_before(next(iter(self.manifest.ledgers), self.last_position.ledger_id))
        self._checkpointed_points = max(self._checkpointed_points - before + len(self.index.points), 0)

    def _checkpoint(self, from_point: int, written: list[IncarnationRecord]) -> Checkpoint:
        current = self.open_ledger
        if current is not None:
            place = (current.ledger_id, current.segment_index, current.end_offset, current.next_entry_id)
        else:
            # Behind everything there was, before everything there will be.
            place = (self.last_position.ledger_id, _BEHIND_ALL_SEGMENTS, 0, 0)
        points: list[tuple[int, int, int, int, int]] = [*self.index.points[from_point:]]
        last_seqs = {record.incarnation: record.last_seq for record in written}
        retired = self.incarnations.retired()
        blocks = [record[:5] for record in written]
        return Checkpoint(*place, self.index.max_publish_ms, points, last_seqs, retired, blocks)

    def snapshot(self) -> list[ManifestRecord]:
        """Records that describe the whole log.

        Not while an append is under way, which may never come to be.
        """
        assert self.in_flight is None
        self.manifest.max_publish_ms = self.index.max_publish_ms
        records: list[ManifestRecord] = list(self.manifest.snapshot())
        records += self.incarnations.snapshot()
        if self.sequences.is_on:
            # The blocks before are in the records that follow.
            records.append(DeduplicationSwitched(True, *self.last_position))
            records += self.sequences.snapshot()
        records.append(self._checkpoint(0, []))
        # Those that ran are durable already, and must not be lost; those that did not run yet do no harm.
        for change in self.unfinished:
            # Producers to forget are forgotten already, and may be back.
            records += (r for r in change.records if not isinstance(r, SequenceIdsForgotten))
        return records
