"""Takes in segments whose records the manifest has lost.

A segment is named in the manifest once its first frame is durable, and before anybody is told of that
frame. Damage to the record that names it, if that was the last one, looks like a write that nobody was
promised, and a manifest that was cut at a record's end looks whole: but what stands in the segment was
confirmed, and would be removed as the file of a failed write. The file itself shows whose it is: only the
owner that wrote the manifest wrote behind it (ADR 0051).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE, SegmentHeader
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.recovery import SegmentScan
from pulsar_ray.ledger.segment_file import parse_segment_name
from pulsar_ray.managed_ledger.log.manifest.manifest import Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_log import ManifestContent
from pulsar_ray.managed_ledger.log.manifest.manifest_records import SegmentClosed, SegmentOpened


class _Unlisted(NamedTuple):
    ledger_id: int
    segment_index: int
    path: Path
    created_ms: int
    first_entry_id: int
    is_proven: bool
    """Whether a second frame stands there, before which the first one was confirmed."""


def take_unlisted(content: ManifestContent) -> list[Path]:
    """Add the segments that a manifest has lost to its content; returns their files.

    Only reads files. The last record of a torn manifest may have been complete once, so the highest segment
    is taken even with a single frame. A lower one with a single frame is of a write that failed, whose blocks
    went into the next ledger.
    """
    manifest = content.manifest
    found = sorted(_unlisted(content))
    taken = []
    for each in found:
        is_last_of_torn = content.is_torn and each is found[-1]
        if (each.is_proven or is_last_of_torn) and _is_behind(manifest, each.ledger_id, each.segment_index):
            _take(manifest, each)
            taken.append(each.path)
    return taken


def _take(manifest: Manifest, found: _Unlisted) -> None:
    ledger_id, index, _, created_ms, first, _ = found
    ledger = manifest.ledgers.get(ledger_id)
    if ledger is not None:
        # The lost write ended the segment before, too.
        before = ledger.segments[-1]
        scan = SegmentScan(before.path, ledger_id, SEGMENT_HEADER_SIZE, before.first_entry_id, first - 1)
        for _ in scan.frames():
            pass
        manifest.apply(SegmentClosed(ledger_id, before.segment_index, scan.end_offset, first - 1))
    manifest.apply(SegmentOpened(ledger_id, index, first, created_ms))


def _unlisted(content: ManifestContent) -> list[_Unlisted]:
    manifest = content.manifest
    found = []
    newest = _newest(manifest)
    for path in manifest.directory.iterdir():
        parsed = parse_segment_name(path.name)
        if parsed is None or not _may_be_behind(manifest, newest, *parsed):
            continue
        try:
            read = _read(path, *parsed, content.epoch)
        except (SegmentGone, CorruptData):
            continue
        if read is not None:
            found.append(read)
    return found


def _read(path: Path, ledger_id: int, index: int, epoch: int) -> _Unlisted | None:
    """Read whose segment a file is; None unless that epoch's owner wrote a frame there."""
    with SegmentReader(path) as reader:
        header: SegmentHeader = reader.header()
        if (header.epoch, header.ledger_id, header.segment_index) != (epoch, ledger_id, index):
            return None
        first = 0
        if index:
            first = reader.read_frames(SEGMENT_HEADER_SIZE, reader.size(), 1)[0].header.first_entry_id
    scan = SegmentScan(path, ledger_id, SEGMENT_HEADER_SIZE, first, first - 1)
    has_frame = False
    for frame in scan.frames():
        has_frame = True
        if frame.header.durable_entry_id >= first:
            return _Unlisted(ledger_id, index, path, header.created_ms, first, True)
    return _Unlisted(ledger_id, index, path, header.created_ms, first, False) if has_frame else None


def _newest(manifest: Manifest) -> int:
    """The newest ledger that the manifest has ever listed."""
    return max([manifest.last_position.ledger_id, *manifest.ledgers])


def _may_be_behind(manifest: Manifest, newest: int, ledger_id: int, segment_index: int) -> bool:
    if ledger_id in manifest.deleted:
        return False
    if ledger_id != newest:
        return ledger_id > newest
    ledger = manifest.ledgers.get(newest)
    return ledger is not None and ledger.is_open and segment_index > ledger.segments[-1].segment_index


def _is_behind(manifest: Manifest, ledger_id: int, segment_index: int) -> bool:
    """Whether a segment follows on the last one that the manifest lists."""
    ledger = manifest.ledgers.get(ledger_id)
    following = ledger.segments[-1].segment_index + 1 if ledger is not None else 0
    newest = _newest(manifest)
    return _may_be_behind(manifest, newest, ledger_id, segment_index) and segment_index == following
