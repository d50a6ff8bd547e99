"""Cut lost entries out of a partition's segments, and put placeholders there.

A placeholder is a middle chunk of a message that was never begun: dispatchers acknowledge it, and nothing
ever delivers it (ADR 0038). So entries behind keep their positions, a subscription goes on over the gap, its
log is trimmed, and no reader has to know of gaps.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.frame import HOLDS_MARKED_BLOCKS, BlockSpan, FrameHeader, encode_frame_header
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.disk import SYSTEM_DISK, create_closed
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.recovery import SegmentScan
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.maintenance.damage import Damage, Kind
from pulsar_ray.maintenance.form_repair import is_of_form, repairs_of_form
from pulsar_ray.maintenance.partition_repair import Repair, SetAside
from pulsar_ray.maintenance.rebuilding import PartitionContent
from pulsar_ray.maintenance.segment_check import damage_of_block
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo, Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_log import read_manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import LedgersDeleted, TopicIdentity
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted

PRODUCER = "pulsar-ray-repair"
"""The name that placeholders give for their producer."""
_BLOCKS_IN_FRAME = 4096


class _Times(NamedTuple):
    """The epoch and time of the frames around a gap."""

    epoch: int
    broker_time_ms: int


class _Placeholders:
    """Makes the blocks of one segment's placeholders."""

    def __init__(self) -> None:
        identity = uuid.uuid4()
        self._incarnation = identity.int >> 64
        self._message = str(identity)
        self._made = 0

    def block(self, publish_time_ms: int) -> tuple[bytes, BlockSpan]:
        """One block, which stands for one entry."""
        buffers = encode_block(
            b"",
            incarnation=self._incarnation,
            entry_seq=self._made,
            first_sequence_id=0,
            last_sequence_id=0,
            publish_time_ms=publish_time_ms,
            metadata=BlockMetadata(producer_name=PRODUCER, chunk=ChunkInfo(self._message, 1, 3, 0)),
        )
        self._made += 1
        content = b"".join(buffers)
        return content, BlockSpan(len(content), 1, 1)

    def frames(self, ledger_id: int, first: int, last: int, times: _Times) -> Iterator[bytes]:
        """Yield frames for entries first..last."""
        for start in range(first, last + 1, _BLOCKS_IN_FRAME):
            count = min(_BLOCKS_IN_FRAME, last + 1 - start)
            blocks = [self.block(times.broker_time_ms) for _ in range(count)]
            spans = [span for _, span in blocks]
            yield encode_frame_header(
                ledger_id, times.epoch, start, start - 1, times.broker_time_ms, spans, HOLDS_MARKED_BLOCKS
            )
            yield from (content for content, _ in blocks)


def write_without_damage(segment: SegmentInfo, identity: TopicIdentity, last: int, target: Path) -> int:
    """Write a segment to a new file, with placeholders for its lost entries.

    It ends with the entry `last`, and is durable when this returns. Returns its length. The segment's own
    file may be missing.
    """
    length = 0
    with create_closed(target) as file:
        for part in _parts(segment, identity, last):
            length += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return length


def _parts(segment: SegmentInfo, identity: TopicIdentity, last: int) -> Iterator[bytes]:
    ledger_id, first = segment.ledger_id, segment.first_entry_id
    times = _Times(0, 0)
    yield _header(segment, identity)
    placeholders = _Placeholders()
    if segment.path.exists():
        # Without the segment's recorded end: a cut that was broken off has moved it.
        scan = SegmentScan(segment.path, ledger_id, SEGMENT_HEADER_SIZE, first, last)
        with SegmentReader(segment.path) as reader:
            for frame in scan.frames():
                header = frame.header
                if header.first_entry_id > last:
                    break
                times = _Times(header.epoch, header.broker_time_ms)
                yield from placeholders.frames(ledger_id, first, header.first_entry_id - 1, times)
                if frame.blocks:
                    yield reader.read(frame.offset, header.total_length)
                else:
                    yield from _sound_blocks(reader, frame.offset, header, placeholders)
                first = header.last_entry_id + 1
    yield from placeholders.frames(ledger_id, first, last, times)


def _header(segment: SegmentInfo, identity: TopicIdentity) -> bytes:
    """The segment's own header, or a new one."""
    try:
        if segment.path.exists():
            with SegmentReader(segment.path) as reader:
                return reader.header().encode()
    except CorruptData:
        pass
    return SegmentHeader(
        segment.ledger_id, segment.segment_index, 0, identity.topic, identity.partition, 1
    ).encode()


def _sound_blocks(
    reader: SegmentReader, offset: int, header: FrameHeader, placeholders: _Placeholders
) -> Iterator[bytes]:
    """Yield a frame whose bad blocks are replaced."""
    blocks: list[tuple[bytes, BlockSpan]] = []
    at = offset + header.header_length
    for span in header.blocks:
        if damage_of_block(reader, at, span):
            blocks += [placeholders.block(header.broker_time_ms) for _ in range(span.entries)]
        else:
            blocks.append((reader.read_block(at, span.length), span))
        at += span.length
    yield encode_frame_header(
        header.ledger_id,
        header.epoch,
        header.first_entry_id,
        header.durable_entry_id,
        header.broker_time_ms,
        [span for _, span in blocks],
        HOLDS_MARKED_BLOCKS,
    )
    yield from (content for content, _ in blocks)


def cuts_of(directory: Path, damages: Iterable[Damage]) -> list[Repair]:
    """Plan to replace lost entries by placeholders, and to drop missing segments.

    Only reads. Raises UnsupportedFormatVersion, CorruptData, OSError.
    """
    damages = [damage for damage in damages if damage.kind is Kind.ENTRIES or _is_gone(damage)]
    if not damages:
        return []
    content = read_manifest(directory)
    if content is None:
        return []
    take_unlisted(content)
    if of_form := [damage for damage in damages if is_of_form(damage)]:
        # Those of the log have their turn in the next round.
        return repairs_of_form(content, of_form, cuts_damaged=True)
    partition = PartitionContent.of(content)
    repairs = [
        Repair(damage.kind, damage.path, _text(damage), _nothing, topic=damage.topic) for damage in damages
    ]
    last: dict[int, int] = {}
    for damage in damages:
        last[damage.ledger_id] = max(last.get(damage.ledger_id, -1), damage.last_entry_id)
    paths = {damage.path for damage in damages}
    # One new manifest for all of them, behind the last one.
    final = repairs[-1]
    run = partial(_cut, partition=partition, paths=paths, lost_up_to=last)
    return [*repairs[:-1], Repair(final.kind, final.path, final.text, run, final.topic)]


def _is_gone(damage: Damage) -> bool:
    return damage.kind is Kind.SEGMENT and not Path(damage.path).exists()


def _text(damage: Damage) -> str:
    if damage.kind is Kind.SEGMENT:
        return "the empty segment is forgotten"
    count = "1 entry is" if damage.entries == 1 else f"{damage.entries:,} entries are"
    range_ = f"{damage.ledger_id}:{damage.first_entry_id} to {damage.ledger_id}:{damage.last_entry_id}"
    return f"{range_}: {count} cut out"


def _nothing(_: SetAside) -> None:
    """A part of what the last repair of the partition does."""


def _cut(aside: SetAside, partition: PartitionContent, paths: set[str], lost_up_to: dict[int, int]) -> None:
    manifest = partition.manifest
    for path in manifest.directory.glob("manifest-*"):
        aside.keep(path)
    for ledger_id in lost_up_to:
        if ledger_id >= 0 and ledger_id not in manifest.ledgers:
            _add_lost_ledger(manifest, ledger_id, paths)
    for ledger in list(manifest.ledgers.values()):
        if any(str(segment.path) in paths for segment in ledger.segments):
            _cut_ledger(aside, manifest, ledger, paths, lost_up_to.get(ledger.ledger_id, -1))
    partition.write()


def _add_lost_ledger(manifest: Manifest, ledger_id: int, paths: set[str]) -> None:
    lost = SegmentInfo(ledger_id, 0, manifest.directory, 0, 0, -1)
    paths.add(str(lost.path))
    manifest.ledgers[ledger_id] = LedgerInfo(ledger_id, 1, [lost])


def _cut_ledger(
    aside: SetAside, manifest: Manifest, ledger: LedgerInfo, paths: set[str], lost_up_to: int
) -> None:
    """Write the ledger's damaged segments anew, and end it behind its last entry."""
    ledger.segments = list(_cut_segments(aside, manifest, ledger, paths, lost_up_to))
    if not ledger.segments:
        manifest.apply(LedgersDeleted([ledger.ledger_id]))
        return
    if ledger.is_open and str(ledger.segments[-1].path) not in paths:
        return
    ledger.last_entry_id = ledger.segments[-1].last_entry_id
    ledger.size_bytes = sum(segment.end_offset for segment in ledger.segments)
    ledger.closed_ms = ledger.closed_ms or max(ledger.opened_ms, 1)
    manifest.last_position = max(manifest.last_position, ledger.last_position)


def _cut_segments(
    aside: SetAside, manifest: Manifest, ledger: LedgerInfo, paths: set[str], lost_up_to: int
) -> Iterator[SegmentInfo]:
    for segment in ledger.segments:
        if str(segment.path) not in paths:
            yield segment
            continue
        is_last = ledger.is_open and segment is ledger.segments[-1]
        last = lost_up_to if is_last else segment.last_entry_id
        if not segment.path.exists() and last < segment.first_entry_id:
            continue
        staged = segment.path.with_name(f"{segment.path.name}.new")
        last = max(last, _sound_end(segment)) if is_last else last
        length = write_without_damage(segment, manifest.identity, last, staged)
        if segment.path.exists():
            aside.keep(segment.path)
        os.replace(staged, segment.path)
        SYSTEM_DISK.fsync_dir(manifest.directory)
        yield segment._replace(end_offset=length, last_entry_id=last)


def _sound_end(segment: SegmentInfo) -> int:
    """The last entry that an open ledger's segment holds."""
    if not segment.path.exists():
        return -1
    first = segment.first_entry_id
    scan = SegmentScan(segment.path, segment.ledger_id, SEGMENT_HEADER_SIZE, first, first - 1)
    for _ in scan.frames():
        pass
    return scan.next_entry_id - 1
