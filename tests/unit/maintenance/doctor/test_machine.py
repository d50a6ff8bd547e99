from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from pulsar_ray.maintenance.doctor import machine
from pulsar_ray.maintenance.doctor.machine import (
    FSYNCS,
    measure_disk,
    measure_limits,
    measure_ray_ports,
    measure_versions,
    shared_memory_free_bytes,
    taken_ports,
)


def test_a_directory_that_is_there_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = measure_disk(tmp_path)
    assert found.exists
    assert found.is_writable
    assert 0 < found.free_bytes < found.total_bytes
    assert len(found.fsync_ms) in range(FSYNCS + 1)
    assert all(took >= 0 for took in found.fsync_ms)
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_not_there_is_measured_where_it_would_be_and_not_made(tmp_path: Path) -> None:
    found = measure_disk(tmp_path / "a" / "b")
    assert not found.exists
    assert found.is_writable
    assert found.total_bytes == measure_disk(tmp_path).total_bytes
    assert list(tmp_path.iterdir()) == []


def test_paths_at_which_no_directory_can_be_are_measured_above_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path, obstacle in {
        tmp_path / "file": "is no directory",
        tmp_path / "file" / "below": "cannot be a directory: Not a directory",
        tmp_path / "link": "is a link that leads nowhere",
        tmp_path / ("a" * 300): "cannot be a directory: File name too long",
    }.items():
        found = measure_disk(path)
        assert (found.exists, found.obstacle) == (False, obstacle)
        assert found.total_bytes > 0
    assert measure_disk(tmp_path / "a" / "b").obstacle == measure_disk(tmp_path).obstacle == ""


def test_files_from_the_future_are_seen(tmp_path: Path) -> None:
    assert measure_disk(tmp_path).newest_file_s == 0.0
    (tmp_path / "store.json").touch()
    later = time.time() + 5000
    os.utime(tmp_path / "store.json", (later, later))
    assert 4000 < measure_disk(tmp_path).newest_file_s <= 5000


def test_ports_that_somebody_listens_on_are_taken() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert taken_ports(port, port) == (1, 1)
    assert taken_ports(port, port) == (0, 1)


def test_the_holder_of_a_port_of_ray_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(machine, "RAY_PORTS", (port,))
        (taken,) = measure_ray_ports()
        assert not taken.is_free
        assert f"(process {os.getpid()})" in taken.holder
        assert Path(sys.executable).name in taken.command
    (free,) = measure_ray_ports()
    assert (free.is_free, free.holder) == (True, "")


def test_this_machine_has_limits_versions_and_shared_memory() -> None:
    versions = measure_versions()
    assert versions.ray[0].isdigit()
    assert versions.pyarrow[0].isdigit()
    assert versions.system == "Linux"
    assert measure_limits().files != 0
    assert shared_memory_free_bytes() >= 0
