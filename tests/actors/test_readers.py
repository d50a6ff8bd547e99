"""Readers of bulk reads whose processes die or never end, on a real Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import ray

from pulsar_ray.data import failing_actors, set_work_timeout
from pulsar_ray.data.planning.plan import ReadRange, SegmentSlice
from pulsar_ray.data.reading.readers import BlockForm, ReaderPool
from pulsar_ray.errors import InvalidConfiguration, Timeout
from pulsar_ray.model.message_id import EARLIEST, LATEST
from tests.running_broker import Broker
from tests.stored_messages import single
from tests.stored_segments import write_segment

RANGES = 12
FORM = BlockForm(columns=("value",))


@pytest.fixture
def pool(broker: Broker) -> Iterator[ReaderPool]:
    """The broker is there for its Ray."""
    pool = ReaderPool()
    yield pool
    pool.close()


@pytest.fixture
def timeout(request: pytest.FixtureRequest) -> Iterator[None]:
    before = failing_actors.work_timeout_s()
    set_work_timeout(request.param)
    yield
    set_work_timeout(before)


def range_of(segment: SegmentSlice) -> ReadRange:
    return ReadRange(ray.get_runtime_context().get_node_id(), "t", -1, (segment,), EARLIEST, LATEST)


def ranges(directory: Path) -> list[ReadRange]:
    return [
        range_of(
            write_segment(directory / f"{number}-0.seg", [[single(b"%d" % number)]], ledger_id=number + 1)
        )
        for number in range(RANGES)
    ]


def values(pool: ReaderPool, asked: list[ReadRange]) -> list[bytes]:
    blocks = pool.read(asked, [0] * len(asked), FORM)
    assert blocks.messages == len(asked)
    tables = [pa.ipc.open_stream(block).read_all() for block in ray.get(blocks.refs)]
    return [value for table in tables for value in table["value"].to_pylist()]


@pytest.mark.long
def test_ranges_are_in_order_whichever_readers_die_with_others_in_hand(
    pool: ReaderPool, tmp_path: Path
) -> None:
    asked, expected = ranges(tmp_path), [b"%d" % number for number in range(RANGES)]
    assert values(pool, asked) == expected
    for reader in pool._idle.handles():
        ray.kill(reader)
    assert values(pool, asked) == expected
    assert values(pool, asked) == expected


@pytest.mark.parametrize("timeout", [1.0], indirect=True)
def test_a_disk_that_does_not_answer_is_a_timeout_that_names_the_remedy(
    pool: ReaderPool, tmp_path: Path, timeout: None
) -> None:
    segment = write_segment(tmp_path / "5-0.seg", [[single(b"a")]])
    Path(segment.path).unlink()
    os.mkfifo(segment.path)  # nobody writes: whoever opens it waits
    with pytest.raises(Timeout, match=r"read t took longer than 1 s .* 3 times: .*set_work_timeout"):
        pool.read([range_of(segment)], [0], FORM)


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_timeout_is_above_zero(seconds: float) -> None:
    with pytest.raises(InvalidConfiguration, match="more than 0"):
        set_work_timeout(seconds)
