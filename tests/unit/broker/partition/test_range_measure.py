"""Measuring ranges over segment files, against a count of their rows one by one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsar_ray.broker.partition.range_measure import MeasuredRange, RangeLimits, measure_range
from pulsar_ray.format.block import parse_block_header
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.stored_messages import batch, chunks, single
from tests.stored_segments import Block, write_segment

NO_LIMIT = 1 << 40
END = Position(5, 10**6)


class Log:
    """One segment of blocks, each in a frame of its own."""

    def __init__(self, directory: Path, blocks: list[Block]) -> None:
        piece = write_segment(directory / "5-0.seg", [[block] for block in blocks])
        self.headers = [parse_block_header(b"".join(map(bytes, block))) for block in blocks]
        self.segments = [SegmentInfo(5, 0, directory, 0, piece.end_offset, len(blocks) - 1)]

    def measure(
        self,
        messages: int = NO_LIMIT,
        stored_bytes: int = NO_LIMIT,
        *,
        first: Position = EARLIEST,
        batch_index: int = 0,
        end: Position = END,
        takes_one: bool = False,
    ) -> MeasuredRange:
        limits = RangeLimits(messages, stored_bytes, takes_one)
        return measure_range(self.segments, [], first, batch_index, end, limits)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path, [single(b"a"), batch([b"b", b"c", b"d"]), single(b"e" * 1000), single(b"f")])


def test_a_range_ends_behind_so_many_messages_also_inside_a_batch(log: Log) -> None:
    assert [log.measure(count)[:3] for count in range(1, 7)] == [
        (Position(5, 1), 0, 1),
        (Position(5, 1), 1, 2),
        (Position(5, 1), 2, 3),
        (Position(5, 2), 0, 4),
        (Position(5, 3), 0, 5),
        (END, 0, 6),
    ]


def test_a_range_begins_inside_a_batch_and_ends_before_a_position(log: Log) -> None:
    assert log.measure(first=Position(5, 1), batch_index=2, end=Position(5, 3))[:3] == (Position(5, 3), 0, 2)
    assert log.measure(1, first=Position(5, 1), batch_index=1)[:3] == (Position(5, 1), 2, 1)
    assert log.measure(first=Position(5, 4))[2] == 0
    assert log.measure(first=Position(4, 9), end=Position(5, 0))[2] == 0


def test_bytes_are_those_that_are_stored(log: Log) -> None:
    lengths = [header.total_length for header in log.headers]
    assert log.measure().stored_bytes == sum(lengths)
    measured = log.measure(stored_bytes=lengths[0] + lengths[1])
    assert measured == (Position(5, 2), 0, 4, lengths[0] + lengths[1])
    assert log.measure(stored_bytes=lengths[0] + lengths[1] // 3)[:3] == (Position(5, 1), 1, 2)


def test_a_message_that_is_too_large_is_taken_if_it_is_the_first_and_nothing_else_is(log: Log) -> None:
    large = Position(5, 2)
    assert log.measure(stored_bytes=10, first=large)[:3] == (large, 0, 0)
    assert log.measure(stored_bytes=10, first=large, takes_one=True)[:3] == (Position(5, 3), 0, 1)


@pytest.mark.parametrize("seed", range(5))
def test_pieces_one_behind_the_other_make_the_whole(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    steps = random.Random(seed)
    blocks = [batch([b"x"] * steps.randint(1, 9)) for _ in range(30)]
    log = Log(tmp_path, blocks)
    total = sum(header.message_count for header in log.headers)
    place, index, counted = Position(5, 0), 0, 0
    while counted < total:
        wanted = steps.randint(1, 20)
        measured = log.measure(wanted, first=place, batch_index=index)
        assert measured.messages == min(wanted, total - counted)
        counted += measured.messages
        place, index = measured.end, measured.batch_index
    assert place == END


def test_a_message_in_chunks_counts_where_its_last_chunk_is(tmp_path: Path) -> None:
    log = Log(tmp_path, [single(b"a"), *chunks(b"b" * 3000, 3), single(b"c"), *chunks(b"dd", 2)])
    assert [log.measure(count)[::2] for count in range(1, 5)] == [
        (Position(5, 1), 1),
        (Position(5, 4), 2),
        (Position(5, 5), 3),
        (END, 4),
    ]
    whole = log.measure(first=Position(5, 1), stored_bytes=10, takes_one=True)
    assert (whole.end, whole.messages) == (Position(5, 4), 1)
    assert log.measure(first=Position(5, 5), end=Position(5, 6)).messages == 0
