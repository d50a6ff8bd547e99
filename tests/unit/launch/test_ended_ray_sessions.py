"""What ended embedded Rays leave in the temporary directory goes; what is in use stays."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.launch.rays import ended_ray_sessions
from pulsar_ray.launch.rays.ended_ray_sessions import _ended, _removable, clear_ended_sessions, ended_sessions

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


def test_a_link_in_the_place_of_a_session_leads_to_nothing_that_is_removed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may write where Ray's sessions lie: the link comes between the look and the removal."""
    foreign = directory / "foreign"
    (foreign / "below").mkdir(parents=True)
    (foreign / "below" / "file").touch()
    (foreign / "ports.json").touch()
    for name in ("2026-01-01", "2026-01-02"):
        session(directory, name, raylet=True)

    def swap(top: int, known: str) -> list[str]:
        names = _ended(top, known)
        assert len(names) == 2
        for name in names:
            os.rename(directory / name, directory / f"moved-{name}")
            (directory / name).symlink_to(foreign)
        return names

    monkeypatch.setattr(ended_ray_sessions, "_ended", swap)
    clear_ended_sessions(directory)
    assert sorted(path.name for path in foreign.rglob("*")) == ["below", "file", "ports.json"]


def test_a_session_that_is_moved_while_it_is_removed_is_removed_itself(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = directory / "foreign"
    foreign.mkdir()
    (foreign / "ports.json").touch()
    path = session(directory, "2026-01-01", raylet=True)

    def swap(opened: int) -> list[str]:
        names = _removable(opened)
        path.rename(directory / "moved")
        path.symlink_to(foreign)
        return names

    monkeypatch.setattr(ended_ray_sessions, "_removable", swap)
    clear_ended_sessions(directory)
    assert [child.name for child in (directory / "moved").iterdir()] == ["logs"]
    assert (foreign / "ports.json").exists()


def test_a_link_that_is_no_session_of_ours_is_left_alone(directory: Path) -> None:
    foreign = directory / "foreign"
    session(foreign, "2026-01-01", raylet=True)
    (directory / "session_2026-01-01").symlink_to(foreign / "session_2026-01-01")
    (directory / "other").symlink_to(foreign)
    for place in (directory, directory / "other"):
        assert ended_sessions(place) == []
        clear_ended_sessions(place)
    assert (foreign / "session_2026-01-01" / "ports.json").exists()
