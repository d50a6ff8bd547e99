from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pulsar_ray.config import Settings
from pulsar_ray.errors import BrokerPersistenceError, ConnectError, UntrustedPath
from pulsar_ray.launch import embedded
from pulsar_ray.launch.embedded import (
    EmbeddedRecord,
    join_embedded,
    read_record,
    record_failure,
    stop_embedded,
    write_record,
)
from pulsar_ray.ledger.owner_lock import start_time
from pulsar_ray.managed_ledger.store.store_identity import new_identity, write_identity
from tests.other_user import SOMEBODY, needs_root


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_broker_is_found_after_the_clock_was_set(
    data_dir: Path, step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(data_dir, "192.0.2.1:6379", "http://127.0.0.1:8265")
    # The time at which a process started, as the kernel's boot time gives it, moves with the time of day.
    created = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + step_s)
    found = read_record(data_dir)
    assert found is not None
    assert found.address == "192.0.2.1:6379"


def test_another_process_with_the_number_of_a_broker_that_is_gone_is_none() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = start_time(process.pid)
        assert started is not None
        assert EmbeddedRecord("", process.pid, started, "", "").is_alive()
        assert not EmbeddedRecord("", process.pid, started - 1, "", "").is_alive()
        process.communicate(b"\n")
    assert not EmbeddedRecord("", process.pid, started, "", "").is_alive()


@pytest.mark.parametrize("file", ["standalone.start", "standalone.settings", "clients.lock"])
def test_a_directory_in_which_nothing_can_be_written_is_a_typed_error(data_dir: Path, file: str) -> None:
    write_identity(data_dir, new_identity())
    # As on a file system that became read-only: the directory of these files is there, they cannot be opened.
    (data_dir / "run" / file).mkdir()
    if file == "clients.lock":
        write_record(data_dir, "192.0.2.1:6379", "http://127.0.0.1:8265")
    with pytest.raises(BrokerPersistenceError, match=f"{data_dir} cannot be used as data directory"):
        join_embedded(Settings(data_dir=str(data_dir)))


@needs_root
@pytest.mark.parametrize("part", ["run", "run/standalone.json"])
def test_a_record_that_another_user_may_have_put_there_is_none(data_dir: Path, part: str) -> None:
    """It says which Ray gets this user's token, and which process `pulsar-ray stop` ends."""
    write_record(data_dir, "192.0.2.1:6379", "http://127.0.0.1:8265")
    assert read_record(data_dir) is not None
    os.chown(data_dir / part, SOMEBODY, SOMEBODY)
    assert read_record(data_dir) is None
    assert stop_embedded(data_dir) is None


def test_a_record_in_a_directory_in_which_others_may_write_is_none(data_dir: Path) -> None:
    write_record(data_dir, "192.0.2.1:6379", "http://127.0.0.1:8265")
    (data_dir / "run").chmod(0o777)
    assert read_record(data_dir) is None


def start(data_dir: Path) -> None:
    embedded._start(data_dir, Settings(data_dir=str(data_dir)))


@pytest.mark.parametrize(
    ("file", "writes"),
    [
        ("standalone.settings", start),
        ("standalone.failed", lambda data_dir: record_failure(data_dir, ConnectError("no Ray"))),
        ("standalone.json.new", lambda data_dir: write_record(data_dir, "192.0.2.1:6379", "")),
    ],
)
def test_a_link_in_the_run_directory_is_not_written_through(
    data_dir: Path, file: str, writes: Callable[[Path], object]
) -> None:
    (data_dir / "victim").write_text("precious")
    (data_dir / "run" / file).symlink_to(data_dir / "victim")
    with pytest.raises(UntrustedPath, match="link"):
        writes(data_dir)
    assert (data_dir / "victim").read_text() == "precious"
