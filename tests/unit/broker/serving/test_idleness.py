"""For how long an actor has been idle, by a clock that the test sets."""

from __future__ import annotations

from pulsar_ray.broker.serving.sleeper import Idleness


def test_it_counts_from_the_last_use() -> None:
    idleness = Idleness(1000, 500)
    idleness.look(1000, ("a",))
    idleness.look(1400, ("a",))
    assert idleness.idle_ms(1400) == 400
    idleness.look(1600, ("b",))
    assert idleness.idle_ms(1600) == 0
    idleness.look(1900, ("b",))
    assert idleness.idle_ms(1900) == 300


def test_nothing_that_is_under_way_is_idle() -> None:
    idleness = Idleness(0, 500)
    for now_ms in range(0, 2000, 100):
        idleness.look(now_ms, None)
        assert idleness.idle_ms(now_ms) == 0
        assert not idleness.take_report(now_ms)
    idleness.look(2100, ("a",))
    assert idleness.idle_ms(2100) == 0


def test_it_reports_once_in_each_time_without_use() -> None:
    idleness = Idleness(0, 500)
    reports = []
    for now_ms in range(0, 2001, 100):
        idleness.look(now_ms, ("a",) if now_ms < 1200 else ("b",))
        if idleness.take_report(now_ms):
            reports.append(now_ms)
    assert reports == [500, 1000, 1700]
