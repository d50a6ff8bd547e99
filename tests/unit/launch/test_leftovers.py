from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_ray.launch import leftovers
from pulsar_ray.launch.embedded import has_stale_record, prepare_run_directory, write_record
from pulsar_ray.launch.leftovers import STANDALONE, LostBroker, clear_leftovers, find_leftovers
from pulsar_ray.launch.rays.ended_ray_sessions import clear_ended_sessions, ended_sessions
from pulsar_ray.testing.waiting import wait_until

OLD = (1_000_000, 1_000_000)


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sessions without sockets, which have ended long ago."""
    directory = tmp_path / "rays"
    for number in range(3):
        session = directory / f"session_{number}"
        (session / "logs").mkdir(parents=True)
        (session / "file").write_bytes(bytes(1000))
        os.utime(session, OLD)
    monkeypatch.setattr(leftovers, "ray_directory", lambda: str(directory))
    return directory


def test_sessions_are_found_and_cleared_but_for_the_newest_logs(sessions: Path, tmp_path: Path) -> None:
    found = find_leftovers(tmp_path / "data")
    assert [path.name for path in found.sessions] == ["session_0", "session_1", "session_2"]
    assert found.session_bytes >= 3000
    assert sorted(path.name for path in sessions.iterdir()) == ["session_0", "session_1", "session_2"]
    clear_leftovers(tmp_path / "data", found)
    assert [path.name for path in sessions.rglob("*")] == ["session_2", "logs"]
    assert find_leftovers(tmp_path / "data").sessions == ()


def test_the_list_is_what_would_be_cleared(sessions: Path) -> None:
    clear_ended_sessions(sessions)
    assert ended_sessions(sessions) == []


def test_a_record_is_stale_once_its_process_has_ended(sessions: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    prepare_run_directory(data_dir)
    assert not has_stale_record(data_dir)
    write_record(data_dir, "127.0.0.1:1", "")
    assert not has_stale_record(data_dir)
    path = data_dir / "run" / "standalone.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"started": 1}))
    found = find_leftovers(data_dir)
    assert found.has_stale_record
    clear_leftovers(data_dir, found)
    assert not path.exists()


def test_a_broker_whose_directory_is_gone_is_found_at_once(sessions: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "of the broker"
    prepare_run_directory(data_dir)
    command = [sys.executable, "-c", "input()", STANDALONE, str(data_dir / "run" / "standalone.settings")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:

        def lost() -> list[LostBroker]:
            return [found for found in find_leftovers(tmp_path).lost_brokers if found.pid == process.pid]

        assert lost() == [], "it starts"
        shutil.rmtree(data_dir)
        wait_until(lost, what="the process shows its command")
        assert lost() == [LostBroker(process.pid, str(data_dir), has_directory=False)]
        process.communicate(b"\n")
