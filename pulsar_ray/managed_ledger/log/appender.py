"""Deciding where entries go: positions, segments, rollover. A partition's data path; touches no disk."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.format.block import MARKED, BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.frame import HOLDS_MARKED_BLOCKS, encode_frame_header
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.managed_ledger.log.commit import AppendResult, Commit, LogFiles, OpenLedger
from pulsar_ray.managed_ledger.log.ledger_policies import LedgerPolicies
from pulsar_ray.managed_ledger.log.log_state import LogState
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    LedgersDeleted,
    ManifestRecord,
    SegmentOpened,
)
from pulsar_ray.model.message_id import position_of

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
        if (checkpoint := state.checkpoint_if_due()) is not None:
            commit.checkpoint, commit.sequence_ids = checkpoint
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
        is_full = current is None or rollover.is_full(
            current.next_entry_id, current.size_bytes, commit.now_ms - current.opened_ms
        )
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
        state.advance(commit, commit.end_entry_id - commit.positions[0].entry_id, commit.frame_length)
        state.incarnations.confirm()
        if state.sequences.is_on:
            state.sequences.confirm()
        frame = (commit.ledger_id, commit.segment_index, commit.offset, commit.frame_header)
        return AppendResult(commit.positions, [frame], state.end_behind(commit))

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
        else:
            current.bytes_before_segment += current.end_offset
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
