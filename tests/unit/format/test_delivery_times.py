from __future__ import annotations

from array import array

import pytest

from pulsar_ray.errors import InvalidMessage
from pulsar_ray.format.block import ROW_IS_ENTRY, BlockHeader, encode_block, parse_block_header
from pulsar_ray.format.delivery_times import delivery_times, encode_times
from pulsar_ray.format.metadata import BlockMetadata


def header_of(metadata: BlockMetadata | None, rows: int = 1) -> BlockHeader:
    buffers = encode_block(
        b"payload",
        incarnation=1,
        entry_seq=2,
        first_sequence_id=0,
        last_sequence_id=rows - 1,
        publish_time_ms=5,
        message_count=rows,
        flags=ROW_IS_ENTRY if rows > 1 else 0,
        metadata=metadata,
    )
    return parse_block_header(b"".join(buffers))


def test_each_row_has_its_own_time() -> None:
    times = encode_times([1_700_000_000_000, None, 3])
    header = header_of(BlockMetadata(delivery_times=times), rows=3)
    assert delivery_times(header) == array("q", [1_700_000_000_000, 0, 3])
    assert times.hex() == "0068e5cf8b01000000000000000000000300000000000000"


def test_one_time_holds_for_all_rows() -> None:
    assert delivery_times(header_of(BlockMetadata(deliver_at=77), rows=3)) == 77


def test_blocks_without_times_are_not_delayed() -> None:
    assert delivery_times(header_of(None)) is None
    assert delivery_times(header_of(BlockMetadata(producer_name="p", event_time=9))) is None


def test_times_that_do_not_fit_the_rows_are_the_producer_s_mistake() -> None:
    with pytest.raises(InvalidMessage, match="2 delivery times for 3 messages"):
        delivery_times(header_of(BlockMetadata(delivery_times=encode_times([1, 2])), rows=3))


def test_times_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="deliver_at"):
        encode_times([1 << 63])
