"""Writes a frame of a log to the disk, or a change of its manifest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pulsar_ray.format.block import BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.ledger.offloaded import segment_of_note
from pulsar_ray.ledger.record_log import RecordLog
from pulsar_ray.ledger.segment_file import LedgerWriter, parse_segment_name
from pulsar_ray.managed_ledger.log.ledger_policies import RolloverPolicy
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    LedgerClosed,
    ManifestRecord,
    SegmentClosed,
    SequenceIds,
    to_log,
)
from pulsar_ray.model.message_id import Position


class LogFiles(NamedTuple):
    """The files that the disk thread writes.

    Nobody else touches them while work is running.
    """

    owner: DirectoryOwner
    log: RecordLog
    writer: LedgerWriter
    disk: Disk


class WrittenBefore(Protocol):
    """A change of the manifest whose run comes before a commit's."""

    is_written: bool


class LogEnd(NamedTuple):
    """Names a place where a log ends or ended.

    That is its last entry, and where that ends in its segment.
    """

    position: Position
    segment_index: int
    end_offset: int
    batch_size: int
    """How many messages the last entry has if it is a batch, else 0."""


class AppendResult(NamedTuple):
    """Holds where a commit's blocks are stored, and where the log ends then.

    `positions` are those of the first entry of each block.
    A frame is (ledger id, segment index, offset, encoded header).
    """

    positions: list[Position]
    frames: list[tuple[int, int, int, bytes]]
    end: LogEnd


class OpenLedger:
    """Where the next frame goes: the durable end of the open ledger."""

    __slots__ = (
        "end_offset",
        "last_append_ms",
        "ledger_id",
        "next_entry_id",
        "opened_ms",
        "segment_first_entry_id",
        "segment_index",
        "size_bytes",
    )

    def __init__(self, ledger_id: int, opened_ms: int) -> None:
        self.ledger_id = ledger_id
        self.opened_ms = opened_ms
        self.last_append_ms = opened_ms
        self.next_entry_id = 0
        self.segment_index = 0
        self.segment_first_entry_id = 0
        self.end_offset = 0
        """In the last segment."""
        self.size_bytes = 0
        """Of all segments."""

    def is_full(self, rollover: RolloverPolicy, now_ms: int) -> bool:
        """Whether the next entry goes to a new ledger. An empty ledger is never full.

        Pulsar's rule: entries, size or maximum time are reached, and the minimum time has passed. Below 0,
        because the clock was set back, an age means nothing: then size alone counts.
        """
        entries, age_ms = self.next_entry_id, now_ms - self.opened_ms
        if not entries or 0 <= age_ms < rollover.min_ms:
            return False
        is_large = entries >= rollover.max_entries or self.size_bytes >= rollover.max_bytes
        return is_large or age_ms >= rollover.max_ms

    def end_of_segment(self) -> SegmentClosed:
        """The record that ends the segment at its durable end."""
        return SegmentClosed(self.ledger_id, self.segment_index, self.end_offset, self.next_entry_id - 1)

    def end_of_ledger(self, now_ms: int) -> list[ManifestRecord]:
        """The records that end the ledger there."""
        closed = LedgerClosed(self.ledger_id, self.next_entry_id - 1, self.size_bytes, now_ms)
        return [self.end_of_segment(), closed]


class Commit:
    """One frame: `run` writes it on the disk thread.

    Then the owner loop finishes or fails it.
    """

    __slots__ = (
        "after",
        "are_ends_written",
        "buffers",
        "checkpoint",
        "end_entry_id",
        "ends",
        "files",
        "frame_header",
        "frame_length",
        "headers",
        "ledger_id",
        "max_publish_ms",
        "now_ms",
        "offset",
        "positions",
        "records",
        "segment_index",
        "segment_path",
        "sequence_ids",
        "snapshot",
        "total_bytes",
    )

    def __init__(self, files: LogFiles, headers: list[BlockHeader], now_ms: int) -> None:
        self.files = files
        self.headers = headers
        self.now_ms = now_ms
        self.positions: list[Position] = []
        self.buffers: list[Buffer] = []
        self.frame_header = b""
        self.frame_length = 0
        self.end_entry_id = 0
        self.total_bytes = 0
        self.ledger_id = 0
        self.segment_index = 0
        self.offset = 0
        self.max_publish_ms = 0
        self.segment_path: Path | None = None
        """The file of a segment that begins with this frame."""
        self.ends: list[ManifestRecord] = []
        """Ends of ledgers that must be durable before this frame is written (ADR 0068)."""
        self.after: Sequence[WrittenBefore] = ()
        """The changes under way that write such ends."""
        self.are_ends_written = False
        self.records: list[ManifestRecord] = []
        self.checkpoint: Checkpoint | None = None
        self.sequence_ids: Sequence[SequenceIds] = ()
        """The sequence ids at the checkpoint."""
        self.snapshot: Sequence[ManifestRecord] | None = None

    def run(self) -> float:
        """Write, sync, then check the epoch; the frame is durable and ours when it returns.

        Returns the seconds that it took.

        Raises Fenced if another process owns the directory, OSError if the disk failed. In both cases no
        receipt may be sent, and the file's content behind the durable end is unknown.
        """
        began_s = time.perf_counter()
        owner, _, writer, disk = self.files
        if self.ends or self.after:
            self._write_ends()
        if self.segment_path is not None:
            writer.open_segment(self.segment_path)
        writer.append(self.buffers, self.total_bytes)
        if self.segment_path is not None:
            disk.fsync_dir(self.segment_path.parent)
        if self.records or self.checkpoint is not None or self.snapshot is not None:
            self._write_manifest()
        owner.check()
        return time.perf_counter() - began_s

    def _write_ends(self) -> None:
        """End the ledgers whose writes failed.

        None of their blocks may come back beside this frame's."""
        if not all(change.is_written for change in self.after):
            raise OSError("the manifest did not take the end of the ledger before, so no other one is begun")
        ends = [to_log(record) for record in self.ends]
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            self.files.log.rewrite([*map(to_log, snapshot), *ends])
        elif ends:
            self.files.log.append(ends)
        self.are_ends_written = True

    def _write_manifest(self) -> None:
        log = self.files.log
        records = [to_log(record) for record in self.records]
        if self.checkpoint is not None:
            records[:0] = [*map(to_log, self.sequence_ids), to_log(self.checkpoint)]
        if self.snapshot is not None:
            log.rewrite([*map(to_log, self.snapshot), *records])
        elif self.records:
            # Only now that the file is durable: a manifest never names a segment that may not be there.
            log.append(records)
        else:
            # A checkpoint only shortens recovery: it neither waits for the disk nor fails the messages.
            with contextlib.suppress(OSError):
                log.append(records, sync=False)


class ManifestChange:
    """`run` it on the disk thread, then finish or fail it on the owner loop."""

    def __init__(
        self,
        files: LogFiles,
        records: Sequence[ManifestRecord],
        result: Any = None,
        *,
        hold: Position | None = None,
        deleted: Sequence[int] = (),
    ) -> None:
        self.files = files
        self.records = list(records)
        self.result = result
        self.hold = hold
        """A hold that the change registers or moves.

        Trimming respects the hold from the beginning of the change on.
        """
        self.deleted = set(deleted)
        """Ledgers to unlink once the change is durable."""
        self.ends: list[ManifestRecord] = []
        """The records among them that end ledgers.

        Another write takes them over if this change fails.
        """
        self.is_written = False
        """Whether the records are durable; set by `run`."""
        self.snapshot: Sequence[ManifestRecord] | None = None
        self.begins_log = False
        """Whether it begins the manifest of a new owner."""

    def run(self) -> None:
        """Write and sync the records, check the epoch, unlink what they delete; raises Fenced, OSError."""
        run_together([self])


def run_together(changes: Sequence[ManifestChange]) -> None:
    """Run several changes with one write and one sync.

    All of them become durable, or it raises.
    """
    records = [to_log(record) for change in changes for record in change.records]
    snapshot = next((change.snapshot for change in reversed(changes) if change.snapshot is not None), None)
    files = changes[0].files
    if snapshot is not None:
        files.log.rewrite([*map(to_log, snapshot), *records])
    elif records:
        files.log.append(records)
    for change in changes:
        change.is_written = True
    deleted = {ledger_id for change in changes for ledger_id in change.deleted}
    if deleted:
        _unlink(files, deleted)


def _unlink(files: LogFiles, ledger_ids: set[int]) -> None:
    """Remove the files of ledgers that the manifest durably calls deleted.

    Should we be a former owner, nobody misses them.
    """
    directory = files.owner.path
    for name in {segment_of_note(path.name) or path.name for path in directory.iterdir()}:
        parsed = parse_segment_name(name)
        if parsed is not None and parsed[0] in ledger_ids:
            with contextlib.suppress(FileNotFoundError):
                files.disk.unlink(directory / name)
