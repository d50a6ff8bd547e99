"""When nodes without a store are looked at."""

from __future__ import annotations

from itertools import pairwise

from pulsar_ray.actors.stores.storeless_nodes import FIRST_PAUSE_S, LONGEST_PAUSE_S, StorelessNodes


def test_looks_become_seldom() -> None:
    nodes, now_s, looks = StorelessNodes(), 0.0, list[float]()
    while now_s < 24 * 3600:
        if "a" not in nodes.left_alone(now_s):
            looks.append(now_s)
            nodes.found("a", now_s)
        now_s += FIRST_PAUSE_S
    pauses = [after - before for before, after in pairwise(looks)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


def test_somebody_who_asks_has_all_of_them_looked_at_once() -> None:
    nodes = StorelessNodes()
    for now_s in (0.0, 10.0, 30.0):
        nodes.found("a", now_s)
    nodes.look_again()
    assert nodes.left_alone(30.0) == set()
    nodes.found("a", 30.0)
    assert nodes.left_alone(30.0 + 4 * FIRST_PAUSE_S) == {"a"}


def test_a_node_that_comes_back_is_looked_at_as_a_new_one() -> None:
    nodes = StorelessNodes()
    for now_s in (0.0, 10.0, 30.0):
        nodes.found("a", now_s)
    nodes.keep({"b"})
    assert nodes.left_alone(30.0) == set()
    nodes.found("a", 30.0)
    assert nodes.left_alone(30.0 + FIRST_PAUSE_S) == set()
