"""Names of actors: whatever topics and subscriptions are called, no two share one, and each is read back."""

from __future__ import annotations

from itertools import product

import pytest

from pulsar_ray.transport.actor_names import (
    dispatcher_name,
    parse_dispatcher_name,
    parse_partition_name,
    partition_name,
)

PREFIX = "persistent://public/default/"
PIECES = ("a", " -> ", " => ", "->", ">", "%", "2D>", "%2D>", "readers")
TEXTS = sorted({"".join(pieces) for pieces in product(PIECES, repeat=3)})


def test_plain_names_are_what_they_are() -> None:
    assert partition_name(f"{PREFIX}orders") == f"{PREFIX}orders"
    assert dispatcher_name(f"{PREFIX}orders", "a -> b", durable=True) == f"{PREFIX}orders -> a -> b"
    assert dispatcher_name(f"{PREFIX}orders", "", durable=False) == f"{PREFIX}orders => readers"


def test_no_two_actors_share_a_name_and_each_is_read_back() -> None:
    names: set[str] = set()
    for topic in (PREFIX + text for text in TEXTS):
        assert parse_partition_name(partition_name(topic)) == topic
        assert parse_dispatcher_name(partition_name(topic)) is None
        readers = dispatcher_name(topic, "", durable=False)
        assert parse_dispatcher_name(readers) == (topic, "readers", False)
        names |= {partition_name(topic), readers}
    for topic, subscription in product(TEXTS[::3], TEXTS[::5]):
        name = dispatcher_name(PREFIX + topic, subscription, durable=True)
        assert parse_dispatcher_name(name) == (PREFIX + topic, subscription, True)
        names.add(name)
    assert len(names) == 2 * len(TEXTS) + len(TEXTS[::3]) * len(TEXTS[::5])


@pytest.mark.parametrize("name", ["pulsar_ray-controller", "pulsar_ray-store-1", "a -> b"])
def test_other_actors_are_no_dispatchers(name: str) -> None:
    assert parse_dispatcher_name(name) is None
