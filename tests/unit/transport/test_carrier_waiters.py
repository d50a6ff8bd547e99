"""Threads that wait for an event or another carrier."""

from __future__ import annotations

import threading

from pulsar_ray.lane.waiting import Completion
from pulsar_ray.transport.endpoint import CarrierWaiters

WAIT_S = 20.0


class Waiting:
    """A thread that waits; the carrier has changed once the test says so."""

    def __init__(self, waiters: CarrierWaiters, event: Completion) -> None:
        self.has_changed = False
        self.looked = threading.Event()
        self.thread = threading.Thread(target=waiters.wait, args=(event, WAIT_S, self.look), daemon=True)
        self.thread.start()
        assert self.looked.wait(WAIT_S)

    def look(self) -> bool:
        self.looked.set()
        return self.has_changed

    def has_ended(self) -> bool:
        self.thread.join(WAIT_S)
        return not self.thread.is_alive()


def test_a_change_wakes_all_threads_and_an_event_its_own() -> None:
    waiters, events = CarrierWaiters(), [Completion() for _ in range(3)]
    waiting = [Waiting(waiters, event) for event in events]
    events[1].set()
    assert waiting[1].has_ended()
    assert waiting[0].thread.is_alive()
    for each in waiting:
        each.has_changed = True
    waiters.wake_all()
    assert all(each.has_ended() for each in waiting)


def test_a_change_before_the_wait_is_seen() -> None:
    waiters = CarrierWaiters()
    waiters.wait(Completion(), WAIT_S, lambda: True)
    waiters.wake_all()  # of nobody
