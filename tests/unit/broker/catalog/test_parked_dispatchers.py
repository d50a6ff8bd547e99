from __future__ import annotations

from pulsar_ray.broker.catalog.parked_dispatchers import SIGNAL_MS, ParkedDispatchers

P, A, B = "persistent://public/default/t", "t -> a", "t -> b"


def parked(*names: str) -> ParkedDispatchers:
    dispatchers = ParkedDispatchers()
    for name in names:
        dispatchers.left(P, name)
    return dispatchers


def test_all_whose_clients_were_signalled_are_awaited() -> None:
    dispatchers = parked(A, B)
    dispatchers.signalled(P, 100)
    assert dispatchers.are_awaited(P, [], 100)
    assert dispatchers.are_awaited(P, [A], 200)
    assert not dispatchers.are_awaited(P, [A, B], 300)
    assert not dispatchers.are_awaited(P, [], 400), "those that came back may leave by themselves"


def test_clients_that_do_not_come_are_gone() -> None:
    dispatchers = parked(A)
    dispatchers.signalled(P, 100)
    assert dispatchers.are_awaited(P, [], 99 + SIGNAL_MS)
    assert not dispatchers.are_awaited(P, [], 100 + SIGNAL_MS)
    dispatchers.signalled(P, 200 + SIGNAL_MS)
    assert not dispatchers.are_awaited(P, [], 200 + SIGNAL_MS)


def test_nobody_is_awaited_who_was_not_signalled() -> None:
    dispatchers = parked(A)
    assert not dispatchers.are_awaited(P, [], 100), "the partition was started for what time brings"
    dispatchers.signalled(P, 200)
    assert dispatchers.are_awaited(P, [], 200)
    dispatchers.left(P, B)
    assert not dispatchers.are_awaited(P, [], 300), "all leave together"
    dispatchers.signalled(P, 400)
    assert dispatchers.are_awaited(P, [A], 400)


def test_partitions_are_apart_and_those_that_are_no_more_are_forgotten() -> None:
    dispatchers = parked(A)
    dispatchers.signalled("another", 0)
    assert not dispatchers.are_awaited("another", [], 0)
    dispatchers.signalled(P, 0)
    dispatchers.forget(P)
    assert not dispatchers.are_awaited(P, [], 0)


def test_a_new_controller_does_not_know_whom_its_predecessor_signalled() -> None:
    parked = ParkedDispatchers(unsure_until_ms=1000)
    assert parked.are_awaited("p", (), 999)
    assert not parked.are_awaited("p", (), 1000)
