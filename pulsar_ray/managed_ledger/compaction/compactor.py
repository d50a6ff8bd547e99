"""Compacts a log: finds the newest message of each key, and writes those alone.

The form before is read in place of its part of the log, which may be trimmed. The log is read
once, more often where its keys take more memory than they may, and again where a message is kept.
Costs are by the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pulsar_ray.format.block import CHUNK, parse_block_header
from pulsar_ray.format.payload import decode_block, without_rows
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk
from pulsar_ray.managed_ledger.compaction.compacted_form import FormWriter, describe_form
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, CompactionOutcome
from pulsar_ray.managed_ledger.compaction.latest_messages import LatestMessages, rows_there
from pulsar_ray.managed_ledger.compaction.stored_blocks import BlockReader, SourceSegment, StoredBlock
from pulsar_ray.model.message_id import EARLIEST, LATEST

NOTHING_KEPT = (-1, -1, -1, 0)


class Compactor:
    """Carries out one order.

    `watch` is called often, with the share that is done; it may raise to end it.
    """

    def __init__(
        self,
        order: CompactionOrder,
        watch: Callable[[float], None] = lambda _: None,
        disk: Disk = SYSTEM_DISK,
    ) -> None:
        self._order = order
        self._disk = disk
        self._is_writing = False
        self._latest = LatestMessages(
            order.segments,
            order.behind,
            order.horizon,
            retains_null_key=order.retains_null_key,
            max_key_bytes=order.max_key_bytes,
            directory=Path(order.directory),
            watch=lambda share: watch((share + self._is_writing) / 2),
        )

    def run(self) -> CompactionOutcome:
        """Write the compacted form; it is durable when this returns.

        It has no effect until it is named.

        Raises CorruptData for what cannot be read, SegmentGone, OSError; then nothing of it is left.
        """
        with closing(self._latest):
            return self._run()

    def _run(self) -> CompactionOutcome:
        self._latest.find()
        self._latest.keep_open_chunks()
        self._is_writing = True
        order = self._order
        writer = FormWriter(
            Path(order.directory),
            order.number,
            order.epoch,
            order.topic,
            order.partition,
            order.created_ms,
            self._disk,
        )
        try:
            last, kept = self._write(writer)
            writer.finish()
            segments = tuple(
                segment._replace(last_entry_id=self._latest.lasts[segment.ledger_id])
                for segment in writer.segments
            )
            outcome = CompactionOutcome(
                order.number,
                order.horizon,
                segments,
                last,
                kept,
                self._latest.seen - kept,
                self._latest.total_bytes,
                writer.total_bytes,
            )
            describe_form(Path(order.directory), outcome.record(order.created_ms, 0), self._disk)
        except BaseException:
            writer.give_up()
            raise
        return outcome

    def _write(self, writer: FormWriter) -> tuple[tuple[int, int, int, int], int]:
        last, kept = NOTHING_KEPT, 0
        ends = self._latest.chunks.ends
        for blocks in self._latest.kept():
            for block, rows in blocks:
                is_part = block.header.flags & CHUNK and ends.get(block.number) != block.number
                kept += 0 if is_part else len(rows)
                last = self._put(writer, block, rows)
        return last, kept

    def _put(
        self, writer: FormWriter, block: StoredBlock, rows: npt.NDArray[np.int64]
    ) -> tuple[int, int, int, int]:
        header, count = block.header, block.header.message_count
        if len(rows) == count:
            writer.add(block.ledger_id, block.entry_id, header, [block.data], block.frame, header.entries)
        else:
            kept = np.zeros(count, np.bool_)
            kept[rows] = True
            buffers = without_rows(decode_block(block.data), kept)
            written = parse_block_header(buffers[0])
            entries = len(rows) if header.row_is_entry else 1
            writer.add(block.ledger_id, block.entry_id, written, buffers, block.frame, entries)
        return _id_of(block, int(rows[-1]))


def _id_of(block: StoredBlock, row: int) -> tuple[int, int, int, int]:
    """Ledger, entry, batch index or -1 and batch size of a message."""
    header = block.header
    if header.row_is_entry:
        return block.ledger_id, block.entry_id + row, -1, 0
    size = header.batch_size
    return block.ledger_id, block.entry_id, row if size else -1, size


def last_kept_in(segment: SourceSegment) -> tuple[int, int, int, int]:
    """The id of the last message in a segment of a form. Raises CorruptData, SegmentGone."""
    last: StoredBlock | None = None
    for blocks in BlockReader([segment], EARLIEST, LATEST).read():
        last = blocks[-1] if blocks else last
    if last is None:
        return NOTHING_KEPT
    there = rows_there(last.header.metadata().removed_rows, last.header.message_count)
    return _id_of(last, int(np.flatnonzero(there)[-1]))
