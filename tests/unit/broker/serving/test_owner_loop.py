"""Whose loop an actor's state lives on."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from pulsar_ray.broker.serving.owner_loop import DiskThread, OwnerLoop
from pulsar_ray.lane.waiting import within
from pulsar_ray.testing.waiting import wait_until


@contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Iterator[tuple[asyncio.AbstractEventLoop, threading.Thread]]:
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop, thread
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _thread() -> threading.Thread:
    return threading.current_thread()


def test_a_running_uvloop_is_taken_over_and_its_own_calls_stay_on_it() -> None:
    with running(uvloop.new_event_loop()) as (loop, thread):
        owner = OwnerLoop("owner", running=(loop, thread))

        async def call() -> threading.Thread:
            return await owner.run(_thread)

        assert owner.loop is loop
        assert asyncio.run_coroutine_threadsafe(call(), loop).result(10) is thread


def test_calls_from_other_loops_are_handed_over() -> None:
    with running(uvloop.new_event_loop()) as (loop, thread):
        owner = OwnerLoop("owner", running=(loop, thread))
        assert asyncio.run(owner.run(_thread)) is thread


def test_a_loop_taken_over_ends_the_process_too_when_something_unexpected_happens() -> None:
    ended = threading.Event()
    with running(uvloop.new_event_loop()) as (loop, thread):
        OwnerLoop("owner", lambda _error: ended.set(), running=(loop, thread))
        loop.call_soon_threadsafe(lambda: 1 // 0)
        assert ended.wait(10)


def test_what_still_runs_ends_before_its_loop_is_closed() -> None:
    owner = OwnerLoop("owner")
    was_closed: list[bool] = []
    began = threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await within(asyncio.Event().wait(), 60)
        finally:
            was_closed.append(owner.loop.is_closed())

    waiting = owner.submit(wait)
    assert began.wait(10)
    owner.stop()
    assert was_closed == [False]
    assert waiting.cancelled()


def test_any_other_loop_is_left_alone() -> None:
    with running(asyncio.new_event_loop()) as (loop, thread):
        owner = OwnerLoop("owner", running=(loop, thread))
        try:
            assert owner.loop is not loop
            assert asyncio.run(owner.run(_thread)) is not thread
        finally:
            owner.stop()


def test_a_disk_thread_that_has_nothing_to_do_keeps_no_result() -> None:
    class Result:
        """Can be referred to weakly."""

    async def run() -> weakref.ref[Result]:
        return weakref.ref(await disk.run(Result))

    with running(asyncio.new_event_loop()) as (loop, _):
        disk = DiskThread(loop, "disk")
        kept = asyncio.run_coroutine_threadsafe(run(), loop).result(10)
        wait_until(lambda: kept() is None, what="it is let go")
        disk.stop()
