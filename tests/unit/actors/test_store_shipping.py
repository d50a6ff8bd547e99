"""A store ships from when it can on, and says why it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_ray.actors.stores import store_shipping
from pulsar_ray.actors.stores.store_shipping import StoreShipping
from pulsar_ray.config import Settings
from pulsar_ray.journal.store_journal import StoreJournal
from tests.unit.journal.test_store_journal import runs, until


@runs
async def test_a_journal_whose_start_nobody_expected_to_fail_says_so_and_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_failing = True

    def begun(*arguments: Any) -> StoreJournal:
        if is_failing:
            raise RuntimeError("can't start new thread")
        return StoreJournal(*arguments)

    monkeypatch.setattr(store_shipping, "StoreJournal", begun)
    monkeypatch.setattr(store_shipping, "LOOK_INTERVAL_S", 0.01)
    (tmp_path / "a" / "p").mkdir(parents=True)
    store = SimpleNamespace(store_id="store-a", identity=SimpleNamespace(cluster_id="one"))
    directory = cast(Any, SimpleNamespace(path=tmp_path / "a", store=store))
    settings = Settings(remote_url=(tmp_path / "bucket").as_uri())
    shipping = StoreShipping(directory, settings, lambda: None, lambda: None)
    shipping.begin()
    while not (status := await shipping.status()) or not status["problem"]:
        await asyncio.sleep(0.005)
    assert status["problem"] == "RuntimeError: can't start new thread"
    is_failing = False
    await until(lambda: shipping.journal is not None)
    await asyncio.to_thread(shipping.running().stop)
