"""A cursor's directory on disk: a log of changes, flushed in two phases.

A flush is begun on the loop that owns the cursor, run on a thread that may block, and finished on the loop
again. One flush at a time; what changes meanwhile belongs to the next.
"""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.errors import CorruptData
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.record_log import Record, RecordLog, read_log
from pulsar_ray.managed_ledger.cursor.cursor_directories import UNFINISHED
from pulsar_ray.managed_ledger.cursor.cursor_records import (
    CHANGES,
    SNAPSHOT,
    apply_changes,
    changes_payload,
    check_record_types,
    cursor_from_snapshot,
    snapshot_payload,
)
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorChanges, ManagedCursor, Subscription
from pulsar_ray.model.message_id import Position

LOG_NAME = "cursor"
_REWRITE_AT_TIMES_STATE = 4
_REWRITE_AT_LEAST_BYTES = 256 * 1024


class CursorFlush:
    """One write of a cursor's log; `version` and `mark_delete` are durable once `run` returned."""

    __slots__ = ("_log", "_record", "_rewrites", "mark_delete", "version")

    def __init__(self, log: RecordLog, record: Record, rewrites: bool, cursor: ManagedCursor) -> None:
        self._log = log
        self._record = record
        self._rewrites = rewrites
        self.version = cursor.version
        self.mark_delete = cursor.mark_delete

    def run(self) -> None:
        """Write, sync, check the owner; blocks. After OSError or Fenced nothing may be promised."""
        if self._rewrites:
            self._log.rewrite([self._record])
        else:
            self._log.append([self._record])


class CursorStore:
    """The stored cursor of one durable subscription; its directory has one owner at a time."""

    def __init__(self, owner: DirectoryOwner, cursor: ManagedCursor, log: RecordLog) -> None:
        self.cursor = cursor
        self.epoch = owner.epoch
        self.durable_version = cursor.version
        self.durable_mark_delete = cursor.mark_delete
        self._owner = owner
        self._log = log
        self._running: CursorFlush | None = None

    @classmethod
    def create(cls, directory: Path, subscription: Subscription, mark_delete: Position) -> CursorStore:
        """Make a subscription's first cursor, durable when this returns; blocks.

        If one is there already (a crash came between its creation and the answer) it is opened as it stands.
        The directory has another name until all is in it: one without a log is damaged. OSError leaves
        nothing behind that a later call would not take up.
        """
        if directory.exists():
            return cls.open(directory)
        owner = DirectoryOwner.open(directory.with_name(directory.name + UNFINISHED), create=True)
        return cls._start(owner, ManagedCursor(subscription, mark_delete), directory)

    @classmethod
    def open(cls, directory: Path) -> CursorStore:
        """Take over an existing cursor; blocks.

        A torn end of its log is left out: nobody was promised it.

        Raises CorruptData if the log is missing or damaged, WrongNode if the directory is not there,
        UnsupportedFormatVersion.
        """
        return cls._start(DirectoryOwner.open(directory, create=False), None, directory)

    @classmethod
    def _start(cls, owner: DirectoryOwner, new: ManagedCursor | None, directory: Path) -> CursorStore:
        log = RecordLog(owner, LOG_NAME)
        try:
            cursor = read_cursor(owner.path) or new
            if cursor is None:
                raise CorruptData(str(owner.path / LOG_NAME), 0, "the cursor's log is missing")
            log.rewrite([(SNAPSHOT, snapshot_payload(cursor))])
            if owner.path != directory:
                owner.move_to(directory)
        except BaseException:
            log.close()
            owner.close()
            raise
        return cls(owner, cursor, log)

    def begin_flush(self) -> CursorFlush | None:
        """Collect what changed; None if nothing did. RuntimeError while another flush runs."""
        if self._running is not None:
            raise RuntimeError("the cursor is being flushed already")
        cursor, log = self.cursor, self._log
        if cursor.version == self.durable_version and not log.is_broken:
            return None
        limit = max(_REWRITE_AT_LEAST_BYTES, _REWRITE_AT_TIMES_STATE * log.snapshot_size)
        rewrites = log.is_broken or log.size > limit
        record = (SNAPSHOT, snapshot_payload(cursor)) if rewrites else (CHANGES, changes_payload(cursor))
        cursor.changes = CursorChanges(is_recorded=True)
        self._running = CursorFlush(log, record, rewrites, cursor)
        return self._running

    def finish_flush(self, flush: CursorFlush) -> None:
        """The flush was run: its version is durable."""
        self._end(flush)
        self.durable_version = flush.version
        self.durable_mark_delete = flush.mark_delete

    def fail_flush(self, flush: CursorFlush) -> None:
        """The flush raised OSError: the next one writes the whole state into a new file."""
        self._end(flush)
        self._log.close()

    def _end(self, flush: CursorFlush) -> None:
        if flush is not self._running:
            raise RuntimeError("this is not the running flush")
        self._running = None

    def close(self) -> None:
        """Give the directory up, without a flush."""
        self._log.close()
        self._owner.close()


def read_cursor(directory: Path) -> ManagedCursor | None:
    """The cursor as its log has it, read without owning it; None without a log.

    Raises CorruptData, UnsupportedFormatVersion.
    """
    content = read_log(directory, LOG_NAME)
    if content is None:
        return None
    check_record_types(content.records, str(content.path))
    try:
        kind, payload = content.records[0]
        if kind != SNAPSHOT:
            raise ValueError(f"the first record has type {kind}")
        cursor = cursor_from_snapshot(payload)
        for kind, payload in content.records[1:]:
            if kind != CHANGES:
                raise ValueError(f"a record has type {kind}")
            apply_changes(cursor, payload)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise CorruptData(str(content.path), 0, f"not a cursor's log: {error}") from error
    cursor.version = 0
    cursor.changes = CursorChanges(is_recorded=True)
    return cursor
