from __future__ import annotations

import logging
import os
import select
import threading

import pytest

from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.lane.waiting import Completion
from tests.unit.lane.server_thread import DEADLINE_S, Journal


def test_one_thread_per_process() -> None:
    assert IoThread.get() is IoThread.get()
    assert not IoThread.get().is_current


def test_calls_run_on_the_thread_in_order() -> None:
    io, journal = IoThread.get(), Journal()
    for number in range(100):
        io.call_soon(lambda number=number: journal.add((number, io.is_current)))  # type: ignore[misc]
    events = journal.wait_for(lambda events: len(events) == 100)
    assert events == [(number, True) for number in range(100)]


def test_calls_from_many_threads_all_run() -> None:
    io, journal = IoThread.get(), Journal()

    def calls() -> None:
        for _ in range(500):
            io.call_soon(lambda: journal.add(1))

    threads = [threading.Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.wait_for(lambda events: len(events) == 4000)


def test_timers_run_by_their_time_unless_cancelled() -> None:
    io, journal = IoThread.get(), Journal()
    io.call_later(0.06, lambda: journal.add("later"))
    cancelled = io.call_later(0.03, lambda: journal.add("cancelled"))
    io.call_later(0.0, lambda: journal.add("now"))
    cancelled.cancel()
    assert journal.wait_for(lambda events: "later" in events) == ["now", "later"]


def test_a_failing_callback_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    io, journal = IoThread.get(), Journal()
    with caplog.at_level(logging.CRITICAL, "pulsar_ray"):
        io.call_soon(lambda: 1 / 0)  # type: ignore[arg-type]
        io.call_soon(lambda: journal.add("after"))
        journal.wait_for(lambda events: events == ["after"])


def test_events_of_a_descriptor() -> None:
    io, journal = IoThread.get(), Journal()
    read_end, write_end = os.pipe()

    class Owner:
        def on_events(self, mask: int) -> None:
            journal.add((mask & select.EPOLLIN, os.read(read_end, 100)))

        def abandon(self) -> None:
            raise AssertionError("nothing was forked")

    io.register(read_end, Owner(), select.EPOLLIN)
    os.write(write_end, b"ready")
    journal.wait_for(lambda events: events == [(select.EPOLLIN, b"ready")])
    io.unregister(read_end)
    io.unregister(read_end)
    os.close(read_end)
    os.close(write_end)


def test_completion() -> None:
    completion = Completion()
    assert not completion.is_set()
    assert not completion.wait(0.001)
    threading.Timer(0.01, completion.set).start()
    assert completion.wait(DEADLINE_S)
    completion.set()
    assert completion.is_set()
    assert completion.wait()
