"""Which idle actors leave, and in which order others make room."""

from __future__ import annotations

import pytest

from pulsar_ray.broker.catalog.idle_actors import Departure, Group, IdleActors
from pulsar_ray.broker.serving.sleeper import Idle

UNUSED = Idle(60_000, 0, can_park=True)
SILENT_CLIENT = Idle(60_000, 1, can_park=True)
MUST_STAY = Idle(60_000, 1, can_park=False)
GROUP = Group("t", "t", ("t -> a", "t -> b"))


def departure_of(group: Group, **idle: Idle) -> Departure | None:
    actors = IdleActors()
    for name, each in idle.items():
        actors.reported({"t": "t", "a": "t -> a", "b": "t -> b"}[name], each)
    return actors.departure(group)


def test_a_dispatcher_without_consumers_leaves_alone() -> None:
    assert departure_of(GROUP, a=UNUSED) == Departure("t", ("t -> a",), None, False)


def test_a_dispatcher_with_consumers_does_not_leave_alone() -> None:
    assert departure_of(GROUP, a=SILENT_CLIENT) is None


def test_a_partition_waits_for_its_dispatchers() -> None:
    assert departure_of(GROUP, t=UNUSED) is None
    assert departure_of(GROUP, t=UNUSED, a=UNUSED) == Departure("t", ("t -> a",), None, False)
    assert departure_of(GROUP, t=UNUSED, a=UNUSED, b=UNUSED) == Departure("t", GROUP.dispatchers, "t", False)


def test_a_partition_without_dispatchers_leaves_alone() -> None:
    assert departure_of(Group("t", "t"), t=UNUSED) == Departure("t", (), "t", False)


@pytest.mark.parametrize("which", ["t", "a"])
def test_all_leave_together_with_silent_clients(which: str) -> None:
    idle = {"t": UNUSED, "a": UNUSED, "b": UNUSED, which: SILENT_CLIENT}
    assert departure_of(GROUP, **idle) == Departure("t", GROUP.dispatchers, "t", True)


def test_clients_that_would_lose_something_keep_all_awake() -> None:
    assert departure_of(GROUP, t=UNUSED, a=UNUSED, b=MUST_STAY) == Departure("t", ("t -> a",), None, False)


def test_a_group_without_its_partition_gives_only_unused_dispatchers() -> None:
    group = Group("t", None, ("t -> a",))
    assert departure_of(group, a=UNUSED) == Departure("t", ("t -> a",), None, False)
    assert departure_of(group, a=SILENT_CLIENT) is None


def test_an_actor_that_refused_has_to_report_again() -> None:
    actors = IdleActors()
    actors.reported("t", UNUSED)
    actors.forget("t")
    assert actors.departure(Group("t", "t")) is None


def idle_for(seconds: int, clients: int = 0) -> Idle:
    return Idle(seconds * 1000, clients, can_park=True)


def room(wanted: int, **idle: Idle) -> list[str]:
    groups = [Group(name, name) for name in idle]
    chosen = IdleActors().to_make_room(groups, idle, 2000, wanted)
    return [departure.partition for departure in chosen]


def test_the_longest_idle_make_room() -> None:
    assert room(2, a=idle_for(5), b=idle_for(50), c=idle_for(20)) == ["b", "c"]


def test_those_with_clients_make_room_last() -> None:
    assert room(3, a=idle_for(5), b=idle_for(50, clients=1), c=idle_for(20)) == ["c", "a", "b"]


def test_actors_that_were_just_used_make_no_room() -> None:
    assert room(2, a=idle_for(1), b=idle_for(3)) == ["b"]


def test_a_group_counts_all_of_its_processes() -> None:
    groups = [Group("a", "a", ("a -> s",)), Group("b", "b")]
    idle = {"a": idle_for(9), "a -> s": idle_for(30), "b": idle_for(8)}
    chosen = IdleActors().to_make_room(groups, idle, 2000, 2)
    assert [each.size for each in chosen] == [2]
    assert [each.partition for each in chosen] == ["a"]
