"""Which rows of a delivery are moved: those that failed too often themselves."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from pulsar_ray.client.dead_letters.letters import split_over_limit
from pulsar_ray.client.received.receiver_queue import QueuedDelivery
from pulsar_ray.model.row_sets import span


def delivery(rows: int, count: int, failures: tuple[tuple[int, int, int], ...] = ()) -> QueuedDelivery:
    source: Any = None
    return QueuedDelivery(source, 0, 1, "", 0, 0, 0, rows, count, None, failures)


def split(*deliveries: QueuedDelivery, limit: int = 2) -> list[tuple[int, bool]]:
    return [(part.rows, part.is_over_limit) for part in split_over_limit(deliveries, limit)]


@pytest.mark.parametrize(("count", "is_over"), [(0, False), (2, False), (3, True), (100, True)])
def test_a_message_of_its_own_by_its_count(count: int, is_over: bool) -> None:
    assert split(delivery(1, count)) == [(1, is_over)]


def test_entries_of_one_block_go_together() -> None:
    assert split(delivery(span(3, 9), 3)) == [(span(3, 9), True)]


def test_of_a_batch_only_what_failed_itself_in_its_place() -> None:
    parts = split(delivery(span(0, 6), 3, ((1, 2, 1), (2, 4, 3))))
    assert parts == [(0b11, False), (0b1100, True), (0b110000, False)]


def test_a_batch_of_which_no_message_failed_too_often_stays_whole() -> None:
    whole = delivery(span(0, 4), 3, ((0, 1, 2), (1, 2, 1)))
    assert split_over_limit([whole], 2) == [whole]


def test_each_row_is_in_one_part_in_order(seeded: random.Random) -> None:
    for _ in range(200):
        rows = seeded.randrange(1, 1 << 12)
        failures = tuple((row, row + 1, count) for row in range(12) if (count := seeded.randrange(5)))
        parts = split(delivery(rows, 4, failures))
        over = {first for first, _, count in failures if count > 2} if failures else set(range(12))
        expected = [(row, row in over) for row in range(12) if rows >> row & 1]
        found = [(row, is_over) for part, is_over in parts for row in range(12) if part >> row & 1]
        assert found == expected
        kinds = [is_over for _, is_over in parts]
        assert all(a != b for a, b in pairwise(kinds))


@pytest.fixture
def seeded() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed: {seed}")
    return random.Random(seed)
