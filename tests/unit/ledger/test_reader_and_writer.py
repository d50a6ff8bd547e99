"""Reading segment files by pread, and writing them with few calls and no copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import verify_block
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import (
    MAX_BUFFERS_PER_WRITE,
    LedgerWriter,
    parse_segment_name,
    segment_name,
)
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import append, append_blocks, block, open_log


@pytest.mark.parametrize("short", [0, 1, 7, 4096, 100_000])
@pytest.mark.parametrize("count", [1, 3, MAX_BUFFERS_PER_WRITE, 2 * MAX_BUFFERS_PER_WRITE + 5])
def test_every_buffer_is_written_once_and_in_order(tmp_path: Path, short: int, count: int) -> None:
    disk = FaultyDisk()
    disk.short_write_bytes = short
    writer = LedgerWriter(disk)
    writer.open_segment(tmp_path / "s")
    buffers = [bytes([i % 251]) * (i % 5) for i in range(count)]
    writer.append(buffers, sum(map(len, buffers)))
    writer.close()
    assert (tmp_path / "s").read_bytes() == b"".join(buffers)


def test_a_file_that_is_there_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"another owner's")
    with pytest.raises(FileExistsError):
        LedgerWriter(FaultyDisk()).open_segment(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == b"another owner's"


def test_segment_names() -> None:
    assert parse_segment_name(segment_name(15, 3)) == (15, 3)
    for other in ("15-3.seg.new", "manifest-3", "-3.seg", "15.seg"):
        assert parse_segment_name(other) is None


def test_frames_and_blocks_are_read_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    append_blocks(log, [block(seq, size=50_000) for seq in range(1, 4)])
    append_blocks(log, [block(4 + 3 * i, rows=3) for i in range(2000)])
    append(log, 6004)
    [segment] = log.segments()
    with SegmentReader(segment.path) as reader:
        assert reader.header().ledger_id == segment.ledger_id
        frames = reader.read_frames(4096, segment.end_offset, 1 << 30)
        assert [frame.header.first_entry_id for frame in frames] == [0, 1, 4, 6004]
        assert len(reader.read_frames(4096, segment.end_offset, 1)) == 1
        seq = 0
        for offset, header in frames:
            at = offset + header.header_length
            for span in header.blocks:
                parsed = reader.read_block_header(at, span.length)
                assert (parsed.entry_seq, parsed.total_length) == (seq, span.length)
                data = reader.read_block(at, span.length)
                verify_block(data, 0, parsed)
                into = bytearray(span.length)
                reader.read_into(at, into)
                assert into == data
                seq += span.entries
                at += span.length
        assert at == segment.end_offset


def test_what_is_missing_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(SegmentGone):
        SegmentReader(tmp_path / "gone.seg")
    log = open_log(tmp_path)
    append(log, 0)
    append(log, 1)
    [segment] = log.segments()
    content = segment.path.read_bytes()
    segment.path.write_bytes(content[:-1])
    with SegmentReader(segment.path) as reader:
        frames = reader.read_frames(4096, segment.end_offset, 1 << 20)
        at, span = frames[1].offset + frames[1].header.header_length, frames[1].header.blocks[0]
        for read in (
            lambda: reader.read_block(at, span.length),
            lambda: reader.read_into(at, bytearray(span.length)),
        ):
            with pytest.raises(CorruptData) as caught:
                read()
            assert caught.value.path == str(segment.path)
            assert caught.value.offset == at
        with pytest.raises(CorruptData):
            reader.read_frames(frames[1].offset, segment.end_offset - 8, 1 << 20)
        with pytest.raises(CorruptData):
            reader.read_frames(4104, segment.end_offset, 1 << 20)
    with SegmentReader(tmp_path) as directory, pytest.raises(CorruptData):
        directory.read(0, 10)


def test_a_trimmed_file_stays_readable_while_it_is_open(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    [segment] = log.segments()
    with SegmentReader(segment.path) as reader:
        segment.path.unlink()
        assert len(reader.read_frames(4096, segment.end_offset, 1 << 20)) == 1


def test_frames_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for seq, size in enumerate((40, 5000, 40, 40, 90_000, 40)):
        append(log, seq, size=size)
    [segment] = log.segments()
    with SegmentReader(segment.path) as reader:
        offsets = [frame.offset for frame in reader.read_frames(4096, segment.end_offset, 1 << 20)]
        frames = reader.frames(4096, segment.end_offset)
        assert [next(frames).header.first_entry_id for _ in range(4)] == [0, 1, 2, 3]
        with segment.path.open("r+b") as file:
            file.seek(offsets[5])
            file.write(b"\0")
        assert next(frames).offset == offsets[4]
        with pytest.raises(CorruptData) as caught:
            next(frames)
        assert caught.value.offset == offsets[5]
