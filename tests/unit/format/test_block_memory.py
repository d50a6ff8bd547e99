from __future__ import annotations

import gc

import pyarrow as pa

from pulsar_ray.format.block_memory import BlockMemory
from pulsar_ray.format.checksum import Buffer


def address(buffer: Buffer) -> int:
    return int(pa.py_buffer(buffer).address)


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    memory = BlockMemory()
    first = memory.take(100_000, 0)
    place = address(first)
    second = memory.take(100_000, 0)
    assert address(second) != place
    part = pa.py_buffer(first).slice(10, 20)
    del first
    gc.collect()
    assert memory.free_bytes == 0
    del part
    gc.collect()
    assert memory.free_bytes > 0
    assert address(memory.take(100_000, 0)) == place


def test_begins_where_the_data_does_within_a_page() -> None:
    memory = BlockMemory()
    for offset in (0, 1, 80, 4095, 4096, 1_000_001):
        buffer = memory.take(50_000, offset)
        assert len(buffer) == 50_000
        assert address(buffer) % 4096 == offset % 4096


def test_keeps_a_bounded_amount() -> None:
    memory = BlockMemory(kept_bytes=1_000_000)
    taken = [memory.take(length, 7) for length in (40_000, 200_000, 200_000, 600_000, 3_000_000)]
    taken.clear()
    gc.collect()
    assert 0 < memory.free_bytes <= 1_000_000


def test_keeps_nothing_once_closed() -> None:
    memory = BlockMemory()
    early, late = memory.take(40_000, 0), memory.take(40_000, 0)
    del early
    memory.close()
    del late
    gc.collect()
    assert memory.free_bytes == 0
