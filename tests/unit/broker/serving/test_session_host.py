"""Requests that an actor answers later."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.session.session_table import Session


def test_an_answer_that_was_given_up_before_it_began_leaves_nothing_behind(tmp_path: Path) -> None:
    begun: list[str] = []

    async def work(name: str) -> None:
        begun.append(name)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        host = SessionHost(loop, tmp_path, "127.0.0.1", Settings(), SystemClock(), 1)
        host.answer(Session(1, "client", 0), 1, work, "given up")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        host.answer(Session(1, "client", 0), 2, work, "done")
        await asyncio.sleep(0)
        await host.close()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert [str(warning.message) for warning in said if warning.category is RuntimeWarning] == []
    assert begun == ["done"]
