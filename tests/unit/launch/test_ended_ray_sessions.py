"""What ended embedded Rays leave in the temporary directory goes; what is in use stays."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.launch.ended_ray_sessions import clear_ended_sessions

LONG_AGO = time.time() - 7200


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short enough for the paths of sockets."""
    with tempfile.TemporaryDirectory(prefix="pr-") as path:
        yield Path(path)


def session(directory: Path, name: str, *, raylet: bool) -> Path:
    path = directory / f"session_{name}"
    for part in ("sockets", "logs", "runtime_resources"):
        (path / part).mkdir(parents=True)
    (path / "logs" / "raylet.out").write_text("x")
    (path / "ports.json").write_text("{}")
    if raylet:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path / "sockets" / "raylet"))
    return path


def test_ended_sessions_go_but_for_the_logs_of_the_newest(directory: Path) -> None:
    for name in ("2026-01-01", "2026-01-02", "2026-01-03"):
        session(directory, name, raylet=True)
    (directory / "session_latest").symlink_to(directory / "session_2026-01-03")
    clear_ended_sessions(directory)
    assert sorted(path.name for path in directory.iterdir()) == ["session_2026-01-03", "session_latest"]
    assert [path.name for path in (directory / "session_2026-01-03").iterdir()] == ["logs"]
    again = session(directory, "2026-01-04", raylet=True)
    os.utime(directory / "session_2026-01-03", (LONG_AGO, LONG_AGO))
    clear_ended_sessions(directory)
    assert [path for path in directory.iterdir() if not path.is_symlink()] == [again]


def test_sessions_that_run_or_come_up_stay(directory: Path) -> None:
    running = session(directory, "2026-01-01", raylet=False)
    session(directory, "2026-01-02", raylet=False)
    session(directory, "2026-01-03", raylet=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(running / "sockets" / "raylet"))
        listener.listen()
        os.utime(running, (LONG_AGO, LONG_AGO))
        clear_ended_sessions(directory)
    assert len(list(directory.iterdir())) == 3
    assert (running / "ports.json").exists()
    assert (directory / "session_2026-01-02" / "ports.json").exists()
    assert not (directory / "session_2026-01-03" / "ports.json").exists()


def test_a_session_that_never_came_up_goes_after_an_hour(directory: Path) -> None:
    session(directory, "2026-01-02", raylet=True)
    stuck = session(directory, "2026-01-01", raylet=False)
    os.utime(stuck, (LONG_AGO, LONG_AGO))
    clear_ended_sessions(directory)
    assert not stuck.exists()


def test_a_session_that_ended_in_order_goes_at_once(directory: Path) -> None:
    ended = session(directory, "2026-01-01", raylet=False)
    clear_ended_sessions(directory, ended)
    assert [path.name for path in ended.iterdir()] == ["logs"]


def test_nothing_is_to_be_cleared_where_no_ray_has_been(directory: Path) -> None:
    clear_ended_sessions(directory / "nobody")
    assert list(directory.iterdir()) == []
