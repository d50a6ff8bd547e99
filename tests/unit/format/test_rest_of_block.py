"""The rest of a block whose front is stored already."""

from __future__ import annotations

import pytest

from pulsar_ray.format.delivery_times import delivery_times, encode_times
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.format.payload import decode_block, encode_batch, encode_rows, rest_of_block

TIMES = [5, None, 7, 9]


def block(*, row_is_entry: bool, ids: list[int], keys: list[str | None] | None = None) -> list[bytes]:
    given = None if ids == list(range(ids[0], ids[0] + 4)) else ids
    payload, columns = encode_rows([b"0", b"1", b"2", None], keys=keys, sequence_ids=given)
    buffers = encode_batch(
        payload,
        columns,
        message_count=4,
        incarnation=3,
        entry_seq=20,
        first_sequence_id=ids[0],
        last_sequence_id=ids[-1],
        publish_time_ms=99,
        row_is_entry=row_is_entry,
        metadata=BlockMetadata(
            producer_name="p",
            key=keys[0] if keys and not row_is_entry else None,
            delivery_times=encode_times(TIMES),
        ),
    )
    return [b"".join(buffers)]


@pytest.mark.parametrize("ids", [[4, 5, 6, 7], [2, 5, 8, 9]])
@pytest.mark.parametrize("row_is_entry", [False, True])
def test_rows_keep_their_ids_times_and_entry_numbers(row_is_entry: bool, ids: list[int]) -> None:
    rest = rest_of_block(block(row_is_entry=row_is_entry, ids=ids, keys=["a", "b", None, None]), 5)
    assert (rest.dropped_messages, rest.dropped_entries) == (2, 2 if row_is_entry else 0)
    decoded = decode_block(b"".join(rest.buffers))
    assert decoded.values() == [b"2", None]
    assert decoded.sequence_ids() == ids[2:]
    assert decoded.keys() is None
    assert list(delivery_times(decoded.header) or []) == [7, 9]  # type: ignore[arg-type]
    header = decoded.header
    assert (header.first_sequence_id, header.last_sequence_id) == (ids[2], ids[3])
    assert (header.incarnation, header.entry_seq) == (3, 22 if row_is_entry else 20)
    assert (header.publish_time_ms, decoded.metadata.producer_name) == (99, "p")


def test_nothing_is_cut_off_twice_and_one_message_is_left() -> None:
    whole = block(row_is_entry=False, ids=[4, 5, 6, 7])
    assert rest_of_block(whole, 3).buffers == whole
    rest = rest_of_block(whole, 5)
    assert rest_of_block(rest.buffers, 5) == (list(rest.buffers), 0, 0)
    assert decode_block(b"".join(rest_of_block(whole, 99).buffers)).sequence_ids() == [7]
