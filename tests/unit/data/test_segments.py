from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.data.planning.plan import ReadRange, SegmentSlice
from pulsar_ray.data.reading.rows import encode_blocks
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import CorruptData, WrongNode
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from tests.stored_messages import batch, single
from tests.stored_segments import write_segment


def read_range(
    *segments: SegmentSlice,
    first: Position = EARLIEST,
    end: Position = LATEST,
    indexes: tuple[int, int] = (0, 0),
) -> ReadRange:
    return ReadRange("here", "t", 3, segments, first, end, *indexes)


def rows_of(asked: ReadRange, block_bytes: int = 1 << 20) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for block, count in encode_blocks(stored_rows(asked), 0, block_bytes):
        table = pa.ipc.open_stream(block).read_all()
        table.validate(full=True)
        assert table.num_rows == count
        rows += table.to_pylist()
    return rows


def test_a_part_of_the_columns_has_the_same_rows(
    two_segments: tuple[SegmentSlice, SegmentSlice],
) -> None:
    asked = read_range(*two_segments)
    whole = rows_of(asked)
    for columns in (("key",), ("publish_time",), ("value", "entry_id"), ("properties", "producer_name")):
        rows = []
        for block, count in encode_blocks(stored_rows(asked), 0, columns=columns):
            table = pa.ipc.open_stream(block).read_all()
            table.validate(full=True)
            assert (set(table.column_names), table.num_rows) == (set(columns), count)
            rows += table.to_pylist()
        assert rows == [{name: row[name] for name in rows[0]} for row in whole]


def values_of(asked: ReadRange) -> list[bytes]:
    return [row["value"] for row in rows_of(asked)]


@pytest.fixture
def two_segments(tmp_path: Path) -> tuple[SegmentSlice, SegmentSlice]:
    """Ledger 5: entries 0 a, 1 (batch) b c d, 2..4 (rows) e f g, 5 h. Ledger 6: 0 i, 1 (batch) j k."""
    first = write_segment(
        tmp_path / "5-0.seg",
        [
            [single(b"a"), batch([b"b", b"c", b"d"])],
            [batch([b"e", b"f", b"g"], row_is_entry=True)],
            [single(b"h")],
        ],
    )
    second = write_segment(tmp_path / "6-0.seg", [[single(b"i"), batch([b"j", b"k"])]], ledger_id=6)
    return first, second


def test_ids_of_single_messages_batches_and_rows_that_are_entries(
    two_segments: tuple[SegmentSlice, SegmentSlice],
) -> None:
    rows = rows_of(read_range(*two_segments))
    ids = [(row["value"], row["ledger_id"], row["entry_id"], row["batch_index"]) for row in rows]
    assert ids == [
        (b"a", 5, 0, -1),
        (b"b", 5, 1, 0),
        (b"c", 5, 1, 1),
        (b"d", 5, 1, 2),
        (b"e", 5, 2, -1),
        (b"f", 5, 3, -1),
        (b"g", 5, 4, -1),
        (b"h", 5, 5, -1),
        (b"i", 6, 0, -1),
        (b"j", 6, 1, 0),
        (b"k", 6, 1, 1),
    ]


def test_any_two_bounds_cut_as_on_the_list_of_ids(two_segments: tuple[SegmentSlice, SegmentSlice]) -> None:
    rows = rows_of(read_range(*two_segments))
    keys = [(row["ledger_id"], row["entry_id"], max(row["batch_index"], 0)) for row in rows]
    bounds = [*keys, (5, 6, 0), (4, 9, 0), (7, 0, 0), (6, 2, 0), (5, 1, 9), (-1, -1, 0)]
    for low, high in product(bounds, bounds):
        asked = read_range(
            *two_segments,
            first=Position(*low[:2]),
            end=Position(*high[:2]),
            indexes=(low[2], high[2]),
        )
        wanted = [row["value"] for row, key in zip(rows, keys, strict=True) if low <= key < high]
        assert values_of(asked) == wanted, (low, high)


def test_columns_of_every_kind_of_block(tmp_path: Path) -> None:
    segment = write_segment(
        tmp_path / "5-0.seg",
        [
            [
                single(
                    None,
                    sequence_id=9,
                    producer_name="Zoë",
                    key="k\u00e9y",
                    ordering_key="o",
                    properties={"a": "ä", "b": ""},
                    event_time=-5,
                    schema_version=b"\x00\x01",
                ),
                single(b"", sequence_id=10, publish_time_ms=2**62),
                batch(
                    [b"x", None, b""],
                    keys=["日本", None, ""],
                    ordering_keys=[None, "y", None],
                    properties=[{"p": "q"}, None, {}],
                    event_times=[0, None, 4_102_444_800_000],
                    sequence_ids=[11, 15, 20],
                    codec=1,
                ),
                batch([b"r", b"s"], first_sequence_id=21, row_is_entry=True, producer_name="q"),
            ]
        ],
    )
    rows = rows_of(read_range(segment))
    assert [row["publish_time"].year for row in rows] == [2023, 9999] + [2023] * 5
    assert [row["value"] for row in rows] == [None, b"", b"x", None, b"", b"r", b"s"]
    assert [row["key"] for row in rows] == ["k\u00e9y", None, "日本", None, "", None, None]
    assert [row["ordering_key"] for row in rows] == ["o", None, None, "y", None, None, None]
    assert [row["properties"] for row in rows] == [[("a", "ä"), ("b", "")], [], [("p", "q")], [], [], [], []]
    assert [row["sequence_id"] for row in rows] == [9, 10, 11, 15, 20, 21, 22]
    assert [row["producer_name"] for row in rows] == ["Zoë", "", "p", "p", "p", "q", "q"]
    assert [row["schema_version"] for row in rows] == [b"\x00\x01"] + [None] * 6
    assert [row["event_time"] and row["event_time"].timestamp() for row in rows] == [
        -0.005,
        None,
        0.0,
        None,
        4_102_444_800.0,
        None,
        None,
    ]


@pytest.mark.parametrize("block_bytes", [1, 500, 4000, 1 << 20])
def test_blocks_are_cut_by_bytes_and_lose_nothing(tmp_path: Path, block_bytes: int) -> None:
    frames = [[single(b"%03d" % i, sequence_id=i)] for i in range(100)]
    frames.append([batch([b"x" * 50] * 40), batch([b"y"] * 7)])
    asked = read_range(write_segment(tmp_path / "5-0.seg", frames))
    blocks = list(encode_blocks(stored_rows(asked), 0, block_bytes))
    assert sum(count for _, count in blocks) == 147
    assert values_of(asked) == [b"%03d" % i for i in range(100)] + [b"x" * 50] * 40 + [b"y"] * 7
    if block_bytes < 1 << 20:
        # A stored block is never cut, so one may be larger.
        assert max(len(block) for block, _ in blocks) < block_bytes + 10_000
        assert len(blocks) > 1


def test_damage_is_reported_with_file_and_offset(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "5-0.seg", [[single(b"payload")]])
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    data[data.index(b"payload")] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData, match=r"5-0\.seg.*checksum") as caught:
        rows_of(read_range(segment))
    assert str(path) in caught.value.path
    assert caught.value.offset > 0


def test_a_missing_file_or_directory_has_an_error_of_its_own(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "p" / "5-0.seg", [[single(b"a")]])
    Path(segment.path).unlink()
    with pytest.raises(SegmentGone, match="trimmed"):
        rows_of(read_range(segment))
    Path(segment.path).parent.rmdir()
    with pytest.raises(WrongNode, match="not on this node; node here"):
        rows_of(read_range(segment))
