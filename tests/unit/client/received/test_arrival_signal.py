"""Who is told of an arrival."""

from __future__ import annotations

import threading

from pulsar_ray.client.received.arrival_signal import ArrivalSignal

WAIT_S = 20.0


def test_listeners_are_called_with_the_lock_held_until_they_are_removed() -> None:
    lock = threading.Lock()
    arrivals = ArrivalSignal(lock)
    told: list[bool] = []

    def listen() -> None:
        told.append(lock.locked())

    with lock:
        arrivals.add_listener(listen)
        arrivals.notify()
        arrivals.remove_listener(listen)
        arrivals.notify()
    assert told == [True]


def test_threads_that_sleep_wake_for_what_they_wait_for() -> None:
    lock = threading.Lock()
    arrivals = ArrivalSignal(lock)
    come: list[str] = []
    asked = threading.Event()
    woken: list[bool] = []

    def has_come() -> bool:
        asked.set()
        return bool(come)

    def sleep() -> None:
        woken.append(arrivals.wait_for(has_come, WAIT_S))

    sleepers = [threading.Thread(target=sleep) for _ in range(2)]
    for sleeper in sleepers:
        sleeper.start()
    assert asked.wait(WAIT_S)
    with lock:
        arrivals.notify()  # of something else
    assert not woken
    with lock:
        come.append("it")
        arrivals.notify()
    for sleeper in sleepers:
        sleeper.join(WAIT_S)
    assert woken == [True, True]


def test_what_is_there_already_is_not_waited_for() -> None:
    arrivals = ArrivalSignal(threading.Lock())
    assert arrivals.wait_for(lambda: True, 0.0)
    assert not arrivals.wait_for(lambda: False, 0.0)


def test_a_forked_child_waits_with_a_lock_of_its_own() -> None:
    lock, own = threading.Lock(), threading.Lock()
    arrivals = ArrivalSignal(lock)
    lock.acquire()  # by a thread that the child does not have
    arrivals.forked(own)
    assert not arrivals.wait_for(lambda: not own.locked(), 0.0)
    with own:
        arrivals.notify()
