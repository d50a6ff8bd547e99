"""Key_Shared: what a crashed consumer left behind, one message at a time to each slot's owner."""

from __future__ import annotations

from typing import TypeAlias

from pulsar_ray.dispatch import row_segments
from pulsar_ray.dispatch.consumer import PendingBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.key_routes import KeyRoutes
from pulsar_ray.dispatch.policy import GrantSource
from pulsar_ray.model.row_sets import numbers_of
from pulsar_ray.numpy_on_demand import np

Barriers: TypeAlias = dict[int, tuple[tuple[int, int], int]]
"""By number of a consumer: block and row of its first suspect. Nothing at or behind it may be granted."""


def dispatch_suspects(routes: KeyRoutes, source: GrantSource, grants: list[Grant]) -> Barriers:
    """Give each consumer its first suspect if it holds nothing else; returns who must wait where."""
    first = _first_suspects(routes, source)
    for number, (key, row) in first.items():
        consumer = routes.consumers[number]
        block = source.pending.suspects[key]
        if consumer.unacked or source.room(consumer) <= 0 or _is_behind(routes, source, number, key, row):
            continue
        grants.append(source.grant_suspect(consumer, block, row))
    return first


def _first_suspects(routes: KeyRoutes, source: GrantSource) -> Barriers:
    first: Barriers = {}
    for key, block in source.pending.suspects.items():
        if len(first) == len(routes.consumers):
            break
        rows = numbers_of(row_segments.rows_of(block.suspects))
        for number, row in zip(_numbers(routes, block, rows), rows.tolist(), strict=True):
            if number >= 0:
                first.setdefault(number, (key, row))
    return first


def _numbers(
    routes: KeyRoutes, block: PendingBlock, rows: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> list[int]:
    assert block.slots is not None
    if isinstance(block.slots, int):
        return [int(routes.table[block.slots])] * len(rows)
    numbers: list[int] = routes.table[block.slots[rows]].tolist()
    return numbers


def _is_behind(routes: KeyRoutes, source: GrantSource, number: int, key: tuple[int, int], row: int) -> bool:
    """Whether a message that waits as usual comes before the suspect at this consumer."""
    for waiting_key, block in source.pending.waiting.items():
        if waiting_key > key:
            return False
        rows = numbers_of(row_segments.rows_of(block.waiting))
        for found, at in zip(_numbers(routes, block, rows), rows.tolist(), strict=True):
            if found == number and (waiting_key < key or at < row):
                return True
    return False
