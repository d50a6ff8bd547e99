"""Blocks in the order of the log, against a plain list of them."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.dispatch_blocks import BlockIndex
from pulsar_ray.dispatch.consumer import DispatchBlock

SEEDS = range(20)


def block_at(ledger_id: int, first: int, entries: int) -> DispatchBlock:
    return DispatchBlock(BlockRef(ledger_id, 0, 0, 8, first, entries, entries, entries > 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_are_found_by_any_entry_while_others_come_and_go(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    held, model = BlockIndex(), list[DispatchBlock]()
    ledger_id, following = 1, 0
    for _ in range(600):
        action = rng.random()
        if action < 0.5:
            if rng.random() < 0.02:
                ledger_id, following = ledger_id + 1, 0
            block = block_at(ledger_id, following + rng.choice((0, 0, 3)), rng.randint(1, 9))
            following = block.ref.last_entry_id + 1
            held.add(block)
            model.append(block)
        elif action < 0.9 and model:
            gone = model.pop(rng.choice((0, 0, rng.randrange(len(model)))))
            del held[gone.key]
        elif action < 0.91:
            held.clear()
            model.clear()
        check(held, model, rng, ledger_id, following)


def check(
    held: BlockIndex, model: list[DispatchBlock], rng: random.Random, ledger_id: int, following: int
) -> None:
    assert list(held.values()) == model
    ledger = rng.randint(max(ledger_id - 1, 1), ledger_id)
    first = rng.randint(0, following + 5)
    last = first + rng.randint(0, 30)
    overlapping = [
        block
        for block in model
        if block.ref.ledger_id == ledger
        and block.ref.first_entry_id <= last
        and block.ref.last_entry_id >= first
    ]
    assert list(held.overlapping(ledger, first, last)) == overlapping
    holding = [block for block in overlapping if block.ref.first_entry_id <= first]
    assert held.find(ledger, first) is (holding[0] if holding else None)
    assert held.up_to((ledger, first)) == [block for block in model if block.key <= (ledger, first)]


def test_blocks_may_go_while_they_are_looked_at() -> None:
    held = BlockIndex()
    for first in range(10):
        held.add(block_at(1, first, 1))
    for block in held.overlapping(1, 2, 20):
        del held[block.key]
    assert list(held) == [(1, 0), (1, 1)]


def test_what_is_kept_of_blocks_that_have_gone_is_bounded() -> None:
    held = BlockIndex()
    for first in range(5000):
        held.add(block_at(1, first, 1))
        if first:
            del held[1, first]
    assert len(held._keys) < 200
    assert held.find(1, 0) is held[1, 0]
