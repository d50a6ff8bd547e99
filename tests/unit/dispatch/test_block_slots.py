"""The slots of stored blocks: from headers where these say all, from key columns where rows are entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulsar_ray.dispatch.block_slots import needs_payload, slots_of_header, slots_of_rows
from pulsar_ray.dispatch.sticky_key import Slots, Slotting, slot_of
from pulsar_ray.format.block import BlockHeader, parse_block_header
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single

IDS: dict[str, Any] = {"incarnation": 1, "entry_seq": 1, "publish_time_ms": 0}


def rows_block(
    keys: list[str | None] | None,
    ordering_keys: list[str | None] | None = None,
    *,
    row_is_entry: bool = True,
    codec: int = 0,
    metadata: BlockMetadata | None = None,
) -> bytes:
    count = len(keys or ordering_keys or [])
    payload, columns = encode_rows([b"x" * 50] * count, keys=keys, ordering_keys=ordering_keys)
    buffers = encode_batch(
        payload,
        columns,
        message_count=count,
        first_sequence_id=0,
        last_sequence_id=count - 1,
        row_is_entry=row_is_entry,
        codec=codec,
        metadata=metadata,
        **IDS,
    )
    return b"".join(map(bytes, buffers))


def slots(block: bytes, slotting: Slotting = Slotting.RANGE) -> Slots:
    header: BlockHeader = parse_block_header(block)
    if not needs_payload(header):
        return slots_of_header(header, slotting)
    payload = block[header.header_length : header.header_length + header.payload_length]
    return slots_of_rows(header, payload, slotting)


def of(*keys: str, slotting: Slotting = Slotting.RANGE) -> list[int]:
    return [slot_of(key, slotting) for key in keys]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("slotting", Slotting)
def test_every_row_has_the_slot_of_its_key(codec: int, slotting: Slotting) -> None:
    found = slots(rows_block(["a", None, "b", "a", ""], codec=codec), slotting)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == of("a", "NON_KEY", "b", "a", "NON_KEY", slotting=slotting)


def test_the_ordering_key_of_a_row_comes_before_its_key() -> None:
    found = slots(rows_block(["a", "b", None, "d"], ["x", None, "y", ""]))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == of("x", "b", "y", "d")


def test_rows_that_agree_need_one_slot_only() -> None:
    assert slots(rows_block(["a"] * 100)) == slot_of("a", Slotting.RANGE)
    assert slots(rows_block(["a"])) == slot_of("a", Slotting.RANGE)


def test_headers_say_the_key_of_single_messages_and_of_batches() -> None:
    single = encode_single(b"v", sequence_id=0, metadata=BlockMetadata(key="k"), **IDS)
    assert slots(b"".join(map(bytes, single))) == slot_of("k", Slotting.RANGE)
    batch = rows_block(["b", "a"], row_is_entry=False, metadata=BlockMetadata(key="b"))
    assert slots(batch) == slot_of("b", Slotting.RANGE)
    keyless_first = rows_block([None, "a"], row_is_entry=False)
    assert slots(keyless_first) == slot_of("NON_KEY", Slotting.RANGE)
    of_all = rows_block(None, ["o"], metadata=BlockMetadata(key="k"))
    assert slots(of_all) == slot_of("o", Slotting.RANGE)


def test_a_key_in_the_header_of_rows_holds_for_those_without_one() -> None:
    found = slots(rows_block([None, None], ["o", None], metadata=BlockMetadata(key="k")))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == of("o", "k")


def test_damaged_payloads_are_refused() -> None:
    block = rows_block(["a", "b"])
    header = parse_block_header(block)
    payload = block[header.header_length : header.header_length + header.payload_length]
    for cut in range(0, len(payload), 7):
        with pytest.raises(ValueError, match=r".+"):
            slots_of_rows(header, payload[:cut], Slotting.RANGE)
