"""Calls on threads of their own that a loop waits for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pulsar_ray.asyncio.blocking_calls import in_thread
from tests.conformance.event_loop import on_a_loop, turns, until


@on_a_loop
async def test_what_was_opened_is_undone_whenever_the_caller_is_cancelled() -> None:
    for later in range(-1, 5):
        may_end = threading.Event()
        undone: list[str] = []

        def open_it(may_end: threading.Event = may_end) -> str:
            may_end.wait(20)
            return "opened"

        calling = asyncio.create_task(in_thread(open_it, undo=undone.append))
        await turns(2)
        if later < 0:
            calling.cancel()
        may_end.set()
        # The loop is held up until the answer stands in its queue.
        for thread in threading.enumerate():
            if thread.name == "pulsar-ray-control":
                thread.join(20)
        await turns(max(0, later))
        if later >= 0 and not calling.cancel():
            assert calling.result() == "opened"
            assert later > 0
            continue
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(lambda undone=undone: undone == ["opened"])  # type: ignore[misc]
