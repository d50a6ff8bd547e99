"""The comparison of benchmarks with metrics and without says what metrics cost, whatever a line counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.measuring.environment import Environment
from benchmarks.measuring.metrics_cost import SWITCH, compared, run_with_and_without
from benchmarks.measuring.results import Row


def _rows(rate: float, latency: float, cpu_us: float = 0.0) -> list[Row]:
    cpu = {"client": cpu_us, "partition": cpu_us} if cpu_us else {}
    return [
        Row("rate", "", ratio=rate, cpu_us=cpu),
        Row("latency", "", ratio=latency, at_most=True),
        Row("no ratio", ""),
    ]


def test_below_one_is_a_cost_where_less_is_better_too() -> None:
    rows = compared([_rows(0.9, 1.25, 1.5)], [_rows(1.0, 1.0, 1.0)])
    assert [row.what for row in rows] == ["all 2 lines", "CPU of 1 lines", "rate", "latency"]
    assert [row.ratio for row in rows[1:]] == pytest.approx([2 / 3, 0.9, 0.8])
    assert rows[0].ratio == pytest.approx(0.85)
    assert rows[0].is_reached is False
    assert rows[2].note == "CPU us/message 3.00, without 2.00"


def test_of_several_runs_the_middle_counts() -> None:
    rows = compared([_rows(rate, 1.0) for rate in (0.2, 1.0, 1.1)], [_rows(1.0, 1.0)] * 3)
    assert [row.ratio for row in rows[1:]] == pytest.approx([1.0, 1.0])
    assert compared([[]], [[]]) == []


def test_both_ways_take_turns_and_leave_the_setting_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "7")
    seen: list[str | None] = []

    def run(_: Environment) -> list[Row]:
        seen.append(os.environ.get(SWITCH))
        return _rows(1.0, 1.0)

    run_with_and_without(run, Environment(tmp_path, 1.0), 2)
    before, *measured = seen
    assert before == "7"
    assert measured == [None, "0", "0", None]
    assert os.environ[SWITCH] == "7"
