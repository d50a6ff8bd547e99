"""The slots of stored blocks: from headers where these say all, from key columns where rows are entries."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from pulsar_ray.dispatch.key_shared.sticky_key import Slots, SlotsOfBlocks, Slotting, slot_of
from pulsar_ray.format.block import parse_block_header
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
    blocks = SlotsOfBlocks(slotting)
    blocks.add_block(memoryview(block))
    return blocks.take()[0]


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
    for ordering_key, key, expected in (
        (None, "k", "k"),
        ("o", "k", "o"),
        ("", "k", "k"),
        (None, None, "NON_KEY"),
        ("", "", "NON_KEY"),
    ):
        metadata = BlockMetadata(key=key, ordering_key=ordering_key)
        single = encode_single(b"v", sequence_id=0, metadata=metadata, **IDS)
        assert slots(b"".join(map(bytes, single))) == slot_of(expected, Slotting.RANGE)
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


def random_keys(rng: random.Random, count: int) -> list[str | None] | None:
    kind = rng.randrange(5)
    if kind == 0:
        return None
    if kind == 1:
        return [f"{rng.randrange(10**6)}" for _ in range(count)]
    if kind == 2:
        return ["same"] * count
    sizes = (0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 300)
    return [None if rng.random() < 0.2 else "k" * rng.choice(sizes) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slotting", Slotting)
def test_blocks_together_have_the_slots_they_have_one_by_one(seed: int, slotting: Slotting) -> None:
    rng = random.Random(seed)
    together = SlotsOfBlocks(slotting)
    expected: list[Slots] = []
    found: list[Slots] = []
    for _ in range(rng.randrange(1, 30)):
        count = rng.randrange(2, 400)
        keys, ordering_keys = random_keys(rng, count), random_keys(rng, count)
        block = rows_block(keys or ["k"] * count, ordering_keys, metadata=BlockMetadata(key=rng.choice("ab")))
        header = parse_block_header(block)
        if rng.random() < 0.2:
            together.add_slot(7)
            expected.append(7)
        expected.append(slots(block, slotting))
        together.add_rows(header, block[header.header_length :][: header.payload_length])
        if together.is_full or rng.random() < 0.1:
            found += together.take()
    found += together.take()
    assert [one if isinstance(one, int) else one.tolist() for one in expected] == [
        one if isinstance(one, int) else one.tolist() for one in found
    ]


def test_a_damaged_block_leaves_the_others_of_its_company_their_slots() -> None:
    together = SlotsOfBlocks(Slotting.RANGE)
    blocks = [rows_block(["a", "b"]), rows_block(["c", "d"]), rows_block(["e", "f"])]
    for number, block in enumerate(blocks):
        header = parse_block_header(block)
        payload = block[header.header_length : header.header_length + header.payload_length]
        if number == 1:
            with pytest.raises(ValueError, match=r".+"):
                together.add_rows(header, payload[:-9])
            together.add_slot(5)
        else:
            together.add_rows(header, payload)
    first, second, third = together.take()
    assert second == 5
    assert isinstance(first, np.ndarray)
    assert isinstance(third, np.ndarray)
    assert [*first.tolist(), *third.tolist()] == of("a", "b", "e", "f")
    assert together.take() == []


def test_hashing_together_ends_where_it_gains_nothing() -> None:
    together = SlotsOfBlocks(Slotting.RANGE)
    block = rows_block([f"{number}" for number in range(1000)])
    header = parse_block_header(block)
    added = 0
    while not together.is_full:
        together.add_rows(header, block[header.header_length :][: header.payload_length])
        added += 1
    assert 2 <= added <= 100
    assert len(together.take()) == added
    assert not together.is_full


def test_damaged_payloads_are_refused() -> None:
    block = rows_block(["a", "b"])
    header = parse_block_header(block)
    payload = block[header.header_length : header.header_length + header.payload_length]
    blocks = SlotsOfBlocks(Slotting.RANGE)
    for cut in range(0, len(payload), 7):
        with pytest.raises(ValueError, match=r".+"):
            blocks.add_rows(header, payload[:cut])
    assert blocks.take() == []
