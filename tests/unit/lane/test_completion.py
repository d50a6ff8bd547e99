"""An event that threads wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pulsar_ray.lane.waiting import Completion

WAIT_S = 20.0


def in_thread(call: Callable[[], bool]) -> tuple[threading.Thread, list[bool]]:
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(call()), daemon=True)
    thread.start()
    return thread, outcome


def test_threads_wait_until_it_is_set() -> None:
    event, asked = Completion(), threading.Semaphore(0)

    def unless() -> bool:
        asked.release()
        return False

    waiting = [in_thread(lambda: event.wait(WAIT_S, unless)) for _ in range(2)]
    for _ in waiting:
        assert asked.acquire(timeout=WAIT_S)
    event.set()
    event.set()
    for thread, outcome in waiting:
        thread.join(WAIT_S)
        assert outcome == [True]
    assert event.wait(0.0)


def test_a_thread_that_is_woken_goes_on_although_it_is_not_set() -> None:
    event, asked = Completion(), threading.Event()

    def unless() -> bool:
        asked.set()
        return False

    thread, outcome = in_thread(lambda: event.wait(WAIT_S, unless))
    assert asked.wait(WAIT_S)
    event.wake()
    event.wake()
    thread.join(WAIT_S)
    assert outcome == [False]


def test_a_thread_that_need_not_wait_does_not() -> None:
    event = Completion()
    assert not event.wait(None, lambda: True)
    assert not event.wait(0.0)


def test_a_wake_from_within_the_last_look_is_not_lost() -> None:
    event = Completion()

    def wake_in_between() -> bool:
        event.wake()
        return False

    assert not event.wait(None, wake_in_between)
