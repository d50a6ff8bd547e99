"""Checks the segment files of one ledger, every byte of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from pulsar_ray.errors import (
    CorruptData,
    JournalDamaged,
    RemoteStoreRefused,
    RemoteStoreUnavailable,
    UnsupportedFormatVersion,
)
from pulsar_ray.format.block import parse_block_header, verify_block
from pulsar_ray.format.frame import BlockSpan, FrameHeader
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.recovery import Corruption, SegmentScan
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.maintenance.damage import Damage, Findings, Kind, Totals
from pulsar_ray.managed_ledger.log.manifest.manifest_records import TopicIdentity

Progress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""
_TELL_BYTES = 8 * 1024 * 1024
_LOOK_BEHIND_BYTES = 1024 * 1024


def check_segment(
    segment: SegmentInfo,
    identity: TopicIdentity,
    proven_entry_id: int,
    *,
    is_open: bool,
    progress: Progress,
) -> tuple[Findings, int]:
    """Verify a segment's checksums; returns the findings and the last entry that there is.

    Entries up to `proven_entry_id` were confirmed: those that are missing or bad are lost. Bytes behind them
    in an open ledger may be a write that nobody was promised, which is no damage. In memory is one frame.
    """
    findings = Findings()
    base = Damage(Kind.ENTRIES, str(segment.path), "", topic=identity.topic, ledger_id=segment.ledger_id)
    limit = None if is_open else segment.end_offset
    scan = SegmentScan(
        segment.path,
        segment.ledger_id,
        SEGMENT_HEADER_SIZE,
        segment.first_entry_id,
        proven_entry_id,
        limit,
    )
    entries = messages = told = 0
    try:
        findings.add(*_damaged_header(segment, identity))
        for frame in scan.frames():
            if frame.blocks:
                entries += frame.header.entries
                messages += sum(span.messages for span in frame.header.blocks)
            if scan.end_offset - told >= _TELL_BYTES:
                progress(scan.end_offset - told)
                told = scan.end_offset
        for corruption in scan.corruptions:
            findings.add(*_lost_blocks(corruption, base))
        if is_open and (tail := _unclean_tail(scan)):
            findings.remarks.append(
                f"{identity.topic}: {segment.path} ends in {tail:,} bytes at {scan.end_offset} that are no "
                "whole write: one that was under way, and that nobody was promised"
            )
    except UnsupportedFormatVersion as error:
        findings.add(replace(base, kind=Kind.VERSION, reason=error.text, offset=scan.end_offset))
    except (RemoteStoreUnavailable, RemoteStoreRefused) as error:
        findings.remarks.append(f"{identity.topic}: {segment.path} was not read: {error.text}")
        return findings, proven_entry_id
    except (SegmentGone, CorruptData, JournalDamaged, OSError) as error:
        last = max(proven_entry_id, scan.durable_entry_id)
        if scan.next_entry_id <= last:
            lost = replace(
                base,
                first_entry_id=scan.next_entry_id,
                last_entry_id=last,
                reason=_reason(error),
                offset=getattr(error, "offset", 0),
            )
            findings.add(lost)
        else:
            findings.add(replace(base, kind=Kind.SEGMENT, reason=_reason(error)))
    progress(max(scan.end_offset - told, 0))
    findings.totals = Totals(segments=1, entries=entries, messages=messages, bytes=scan.end_offset)
    return findings, scan.next_entry_id - 1


def _reason(error: Exception) -> str:
    if isinstance(error, SegmentGone):
        return "the file is not there"
    return error.text if isinstance(error, CorruptData | JournalDamaged) else str(error)


def _damaged_header(segment: SegmentInfo, identity: TopicIdentity) -> Iterator[Damage]:
    """Compare what a segment's own header says with the manifest."""
    damage = Damage(Kind.SEGMENT, str(segment.path), "", topic=identity.topic)
    with SegmentReader(segment.path) as reader:
        try:
            header = reader.header()
        except CorruptData as error:
            yield replace(damage, reason=error.text)
            return
    found = (header.ledger_id, header.segment_index, header.topic, header.partition)
    expected = (segment.ledger_id, segment.segment_index, identity.topic, identity.partition)
    if found != expected:
        yield replace(damage, reason=f"its header names {found} instead of {expected}")


def _lost_blocks(corruption: Corruption, base: Damage) -> Iterator[Damage]:
    """Yield the lost entries of a damaged place.

    Of a frame with an intact header they are those of its bad blocks alone.
    """
    whole = replace(
        base,
        reason=corruption.reason,
        offset=corruption.offset,
        first_entry_id=corruption.first_entry_id,
        last_entry_id=corruption.last_entry_id,
    )
    with SegmentReader(Path(corruption.path)) as reader:
        header = _frame_header(reader, corruption.offset)
        if header is None or header.first_entry_id != corruption.first_entry_id:
            yield whole
            return
        at, entry_id = corruption.offset + header.header_length, header.first_entry_id
        for span in header.blocks:
            if reason := damage_of_block(reader, at, span):
                yield replace(
                    whole,
                    reason=reason,
                    offset=at,
                    first_entry_id=entry_id,
                    last_entry_id=entry_id + span.entries - 1,
                    messages=span.messages,
                )
            at += span.length
            entry_id += span.entries


def _frame_header(reader: SegmentReader, offset: int) -> FrameHeader | None:
    with contextlib.suppress(CorruptData):
        for frame in reader.frames(offset, reader.size()):
            return frame.header
    return None


def damage_of_block(reader: SegmentReader, offset: int, span: BlockSpan) -> str:
    """Return why a block cannot be delivered; "" if it can."""
    try:
        block = reader.read_block(offset, span.length)
        header = parse_block_header(block)
        if (header.total_length, header.entries, header.message_count) != span:
            return "block is not the one its frame announces"
        verify_block(block, 0, header)
    except CorruptData as error:
        # Without its place, which is that of bytes that were cut out of the file.
        return error.text.partition(": ")[2] or error.text
    return ""


def _unclean_tail(scan: SegmentScan) -> int:
    """Return how many bytes stand behind the last entry of an open segment.

    Zeros at their end are not counted.
    """
    with SegmentReader(scan.path) as reader:
        length = min(reader.size() - scan.end_offset, _LOOK_BEHIND_BYTES)
        return len(reader.read(scan.end_offset, length).rstrip(b"\0")) if length > 0 else 0
