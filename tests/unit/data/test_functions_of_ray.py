"""Reading gives Ray the same functions whatever is read, for it keeps each until the job ends."""

from __future__ import annotations

import pytest
import ray
from ray.remote_function import RemoteFunction

from pulsar_ray.data.planning.plan import ReadRange, TableSource
from pulsar_ray.data.reading.dataset_reading import _fetched
from pulsar_ray.data.reading.table_ranges import table_ranges
from pulsar_ray.model.message_id import EARLIEST, LATEST

NODE = "ab" * 28


def test_no_function_is_made_for_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def made(*_: object) -> None:
        raise AssertionError("another function was given to Ray")

    def start(function: RemoteFunction, *_: object, **__: object) -> list[object]:
        started.append(function._function_name)
        return []

    monkeypatch.setattr(ray, "remote", made)
    monkeypatch.setattr(RemoteFunction, "_remote", start)
    monkeypatch.setattr(ray, "get", lambda results: results)
    for _ in range(2):
        assert list(_fetched(ReadRange(NODE, "t", -1, (), EARLIEST, LATEST), ("value",), 1, None)) == []
        assert table_ranges([TableSource(NODE, "t", -1, (), EARLIEST, LATEST, False, 1)]) == []
    assert [name.rpartition(".")[2] for name in started] == ["_tables", "ranges_of_table"] * 2
