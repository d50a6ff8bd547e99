"""A store answers the calls of its parts that are declared, and refuses any other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.actors.stores.data_directory import StoreNode
from pulsar_ray.actors.stores.store_parts import STORE_CALLS, StoreParts
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration, ServiceUnitNotReady, WrongNode
from pulsar_ray.journal.store_journal import StoreJournal


@pytest.fixture
def store(tmp_path: Path) -> StoreParts:
    return StoreParts(
        tmp_path / "data",
        StoreNode("n", "host", 0, "owner", "session"),
        Settings(),
        find_peer=lambda _: None,
        find_controller=lambda: None,
        end_process=lambda: None,
    )


def ask(store: StoreParts, part: str, method: str, *arguments: Any) -> Any:
    return asyncio.run(store.call_part(part, method, *arguments))


def test_an_empty_directory_becomes_a_store_only_when_told(store: StoreParts) -> None:
    assert asyncio.run(store.describe())["identity"] is None
    with pytest.raises(WrongNode, match="holds no store"):
        asyncio.run(store.probe())
    made = asyncio.run(store.describe(True))
    assert made["store_id"] == made["identity"].store_id != ""
    assert asyncio.run(store.describe()) == made
    assert asyncio.run(store.probe()) == made["pid"]


def test_parts_are_asked_by_name(store: StoreParts) -> None:
    assert ask(store, "directory", "partitions") == []
    assert ask(store, "moved_files", "noted") == []
    assert ask(store, "sleeping", "due", 0, 1, True) == {}
    assert ask(store, "shipping", "status") is None
    with pytest.raises(ServiceUnitNotReady, match="no journal"):
        ask(store, "journal", "owned_by", "s")


@pytest.mark.parametrize(
    ("part", "method", "text"),
    [
        ("disk", "record", "a store has no part 'disk', only directory, sleeping"),
        ("directory", "put_aside", "directory of a store has no call 'put_aside'"),
        ("copies", "__init__", "copies of a store has no call '__init__'"),
    ],
)
def test_anything_else_is_refused(store: StoreParts, part: str, method: str, text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        ask(store, part, method)


def test_all_that_is_declared_is_there(store: StoreParts) -> None:
    store.shipping.journal = StoreJournal.__new__(StoreJournal)
    for part, methods in STORE_CALLS.items():
        for method in methods:
            assert callable(getattr(store._part(part), method))
