"""A policy hands out suspects singly, each to a consumer that holds nothing else."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.counted_rows import CountedRows
from pulsar_ray.dispatch.consumer import Consumer, DispatchBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.key_shared.key_routes import KeyRoutes
from pulsar_ray.dispatch.policies.policy import GrantSource
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import numbers_of
from pulsar_ray.numpy_on_demand import np

Barriers: TypeAlias = dict[int, tuple[tuple[int, int], int]]
"""Block and row of the first suspect, by number of a consumer.

Nothing at or behind it may be granted.
"""


# ---- one active consumer: in the order of the log


def comes_first(suspect: DispatchBlock, block: DispatchBlock | None) -> bool:
    """Return whether a block's first suspect lies before all rows that wait as usual.

    `block` is at the head of these.
    """
    if block is None or suspect.key < block.key:
        return True
    return suspect is block and _first(suspect.suspects) < _first(block.waiting)


def rows_before_suspects(block: DispatchBlock) -> int:
    """How many waiting rows of a block lie before its first suspect."""
    if not block.suspects:
        return counted_rows.size(block.waiting)
    before = (1 << _first(block.suspects)) - 1
    return (counted_rows.rows_of(block.waiting) & before).bit_count()


def _first(parts: list[CountedRows]) -> int:
    return row_sets.first(counted_rows.rows_of(parts))


# ---- Shared: to anybody who is free


def dispatch_to_free(
    consumers: Collection[Consumer], source: GrantSource, grants: list[Grant]
) -> Consumer | None:
    """Give suspects to consumers that hold nothing; returns one kept free for the rest."""
    for consumer in consumers:
        if consumer.unacked == 0 and source.room(consumer) > 0:
            block = source.blocks.suspects.first_free()
            if block is None:
                return None
            grants.append(source.grant_suspect(consumer, block))
    if any(consumer.suspect is not None for consumer in consumers):
        return None
    return min(
        (consumer for consumer in consumers if source.room(consumer) > 0),
        key=lambda consumer: consumer.unacked,
        default=None,
    )


# ---- Key_Shared: to the owner of the key


def dispatch_to_owners(routes: KeyRoutes, source: GrantSource, grants: list[Grant]) -> Barriers:
    """Give each idle consumer its first suspect; returns where the others must wait."""
    first = _first_suspects(routes, source)
    for number, (block, row) in first.items():
        consumer = routes.consumers[number]
        if consumer.unacked or source.room(consumer) <= 0 or _is_behind(routes, source, number, block, row):
            continue
        grants.append(source.grant_suspect(consumer, block, row))
    return {number: (block.key, row) for number, (block, row) in first.items()}


def _first_suspects(routes: KeyRoutes, source: GrantSource) -> dict[int, tuple[DispatchBlock, int]]:
    first: dict[int, tuple[DispatchBlock, int]] = {}
    for block in source.blocks.suspects.blocks():
        if len(first) == len(routes.consumers):
            break
        rows = numbers_of(counted_rows.rows_of(block.suspects))
        for number, row in zip(_numbers(routes, block, rows), rows.tolist(), strict=True):
            if number >= 0:
                first.setdefault(number, (block, row))
    return first


def _numbers(
    routes: KeyRoutes, block: DispatchBlock, rows: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> list[int]:
    assert block.slots is not None
    if isinstance(block.slots, int):
        return [int(routes.table[block.slots])] * len(rows)
    numbers: list[int] = routes.table[block.slots[rows]].tolist()
    return numbers


def _is_behind(routes: KeyRoutes, source: GrantSource, number: int, suspect: DispatchBlock, row: int) -> bool:
    """Whether a message that waits as usual comes before the suspect at this consumer."""
    for waiting_key, block in source.blocks.waiting.items():
        if waiting_key > suspect.key:
            return False
        rows = numbers_of(counted_rows.rows_of(block.waiting))
        for found, at in zip(_numbers(routes, block, rows), rows.tolist(), strict=True):
            if found == number and (waiting_key < suspect.key or at < row):
                return True
    return False
