from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import ray

from pulsar_ray.launch.rays import ray_output
from pulsar_ray.launch.rays.ray_output import quiet_ray_output, ray_was_joined

MANY_WORKERS = (
    "WARNING: 8 PYTHON worker processes have been started on node: 0a1b with address: 192.0.2.1, which is 4x "
    "the maximum expected startup concurrency (2). This could be a result of using a large number of actors"
)
KILLED = "1 Workers (tasks / actors) killed due to memory pressure (OOM)"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Ray's own way for an error of its node's process, of the Ray that is installed."""
    worker: Any = ray._private.worker
    # Another test of this process may have joined a Ray.
    rays_own = getattr(worker.print_to_stdstream, "_printer", worker.print_to_stdstream)
    monkeypatch.setattr(worker, "print_to_stdstream", rays_own)
    monkeypatch.setattr(ray_output, "_joined", set())
    # Not every Ray has the argument.
    options = {"ignore_prefix": False} if "ignore_prefix" in signature(rays_own).parameters else {}

    def say(*lines: str, pid: str = "raylet") -> None:
        # Ray repeats no line that it has printed a moment ago.
        worker.stdout_deduplicator.recent.clear()
        worker.print_to_stdstream({"lines": list(lines), "pid": pid, "is_err": False}, **options)

    return say


def test_ray_prints_its_errors_into_the_output_of_programs(
    said: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    said(MANY_WORKERS)
    assert "worker processes have been started" in capsys.readouterr().out


def test_the_number_of_workers_is_not_spoken_of(
    said: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    quiet_ray_output()
    quiet_ray_output()
    said(MANY_WORKERS)
    assert capsys.readouterr() == ("", "")


def test_a_program_that_joined_ray_by_itself_sees_everything_else(
    said: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    quiet_ray_output()
    said(KILLED, MANY_WORKERS)
    said("of a task", pid="1234")
    printed = capsys.readouterr().out
    assert KILLED in printed
    assert "of a task" in printed
    assert "worker processes" not in printed


def test_a_ray_that_was_joined_for_the_broker_speaks_in_the_log(
    said: Callable[..., None], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    quiet_ray_output()
    ray_was_joined()
    with caplog.at_level(logging.WARNING):
        said(KILLED, MANY_WORKERS)
    assert capsys.readouterr().out == ""
    assert [record.getMessage() for record in caplog.records] == [f"Ray: {KILLED}"]


def test_what_tasks_print_is_never_held_back(
    said: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    quiet_ray_output()
    ray_was_joined()
    said(f"a task that says {MANY_WORKERS}", pid="1234")
    assert "a task that says" in capsys.readouterr().out
