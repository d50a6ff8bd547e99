"""Messages in chunks in ranges of segment files."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from pulsar_ray.data.planning.plan import ReadRange, SegmentSlice, segments_before
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import CorruptData
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from tests.stored_messages import chunks, single
from tests.stored_segments import Block, write_segment

LEDGER = 5


class Log:
    """Blocks of one entry each, in segments of one ledger."""

    def __init__(self, directory: Path, segments: Sequence[Sequence[Block]]) -> None:
        self.slices: list[SegmentSlice] = []
        self.firsts = [0]
        for index, blocks in enumerate(segments):
            path = directory / f"{LEDGER}-{index}.seg"
            first = self.firsts[-1]
            frames = [[block] for block in blocks]
            self.slices.append(write_segment(path, frames, segment_index=index, first_entry_id=first))
            self.firsts.append(first + len(blocks))

    def range(self, first: int, end: int) -> ReadRange:
        """The messages of some entries, from their own segments."""
        of = [
            each
            for each, begin, stop in zip(self.slices, self.firsts, self.firsts[1:], strict=False)
            if begin < end and first < stop
        ]
        before = segments_before(self.slices, of) if of else ()
        return ReadRange(
            "here", "t", 3, tuple(of), Position(LEDGER, first), Position(LEDGER, end), before=before
        )


def read(asked: ReadRange) -> list[tuple[int, bytes]]:
    """Entry ids and values."""
    return [(rows.first_entry_id, rows.block.values()[0] or b"") for rows in stored_rows(asked)]


def test_a_message_is_a_row_where_its_last_chunk_is(tmp_path: Path) -> None:
    log = Log(tmp_path, [[single(b"a"), *chunks(b"123456789", 3), single(b"b", sequence_id=9)]])
    rows = list(stored_rows(log.range(0, 5)))
    assert [(row.first_entry_id, row.block.values()) for row in rows] == [
        (0, [b"a"]),
        (3, [b"123456789"]),
        (4, [b"b"]),
    ]
    assert (rows[1].block.metadata.key, rows[1].block.header.uncompressed_length) == ("key", 9)


def test_chunks_before_the_range_are_fetched_and_those_before_its_end_are_left(tmp_path: Path) -> None:
    blocks = chunks(b"123456789", 3)
    log = Log(tmp_path, [[single(b"a"), blocks[0]], [blocks[1]], [single(b"b"), blocks[2], single(b"c")]])
    assert read(log.range(0, 4)) == [(0, b"a"), (3, b"b")]
    assert read(log.range(4, 6)) == [(4, b"123456789"), (5, b"c")]


def test_each_message_is_in_one_of_consecutive_ranges(tmp_path: Path) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        streams: list[list[Block]] = [[], [], []]
        expected = set()
        for incarnation, stream in enumerate(streams, 1):
            for number in range(rng.randrange(6)):
                value, seq = b"%d-%d-" % (incarnation, number) + rng.randbytes(40), len(stream)
                if rng.random() < 0.4:
                    stream.append(single(value, sequence_id=seq))
                else:
                    stream += chunks(value, rng.randrange(1, 6), incarnation=incarnation, first_seq=seq)
                expected.add(value)
        entries: list[Block] = []
        while left := [stream for stream in streams if stream]:
            entries.append(rng.choice(left).pop(0))
        cuts = sorted(rng.choices(range(len(entries) + 1), k=3))
        segments = [entries[a:b] for a, b in zip([0, *cuts], [*cuts, len(entries)], strict=True) if a < b]
        log = Log(tmp_path / str(seed), segments)
        bounds = sorted({0, len(entries), *rng.choices(range(len(entries) + 1), k=4)})
        found = [row for a, b in pairwise(bounds) for row in read(log.range(a, b))]
        assert sorted(value for _, value in found) == sorted(expected), f"seed {seed}"
        assert read(log.range(0, len(entries))) == found, f"seed {seed}"


def test_an_incomplete_message_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gone, whole = chunks(b"123456789", 3), chunks(b"abcdef", 2, first_seq=5)
    log = Log(
        tmp_path, [[gone[0]], [gone[1], single(b"a"), gone[2], *whole, chunks(b"xy", 2, first_seq=8)[0]]]
    )
    Path(log.slices[0].path).unlink()
    with caplog.at_level(logging.WARNING):
        assert read(log.range(1, 7)) == [(2, b"a"), (5, b"abcdef")]
    assert "1 messages in chunks of t are left out, the first at 5:3" in caplog.text


def test_a_message_that_another_one_of_its_producer_ends_is_left_out(tmp_path: Path) -> None:
    ended, other = chunks(b"123456", 2), chunks(b"abcdef", 2, first_seq=2)
    log = Log(tmp_path, [[ended[0], *other]])
    assert read(log.range(0, 3)) == [(2, b"abcdef")]


@pytest.mark.parametrize("place", [0, 1])
def test_damage_is_an_error_and_no_missing_chunk(tmp_path: Path, place: int) -> None:
    parts = chunks(b"1" * 4000 + b"2" * 4000, 2)
    log = Log(tmp_path, [[parts[0]], [parts[1]]])
    path = Path(log.slices[place].path)
    data = bytearray(path.read_bytes())
    data[data.index(b"%d" % (place + 1) * 100)] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData, match="checksum"):
        read(log.range(1, 2))


def test_only_segments_before_the_first_one_are_searched(tmp_path: Path) -> None:
    log = Log(tmp_path, [[single(b"%d" % number)] for number in range(70)])
    before = segments_before(log.slices, log.slices[68:])
    assert [each.segment_index for each in before] == list(range(4, 68))
    assert segments_before(log.slices, log.slices[:1]) == ()
    assert read(ReadRange("here", "t", 3, tuple(log.slices[:1]), EARLIEST, LATEST)) == [(0, b"0")]
