"""What an embedded broker sees of its data directory while others remove it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.closed_places import open_own_file
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.launch import embedded
from pulsar_ray.launch.broker_place import ERRORS_FOR_S, BrokerPlace
from pulsar_ray.launch.embedded import ClientMark, StartLock, prepare_run_directory, read_record
from pulsar_ray.testing.waiting import wait_until


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def place(data_dir: Path) -> BrokerPlace:
    place = BrokerPlace(data_dir)
    place.offer("127.0.0.1:1", "")
    return place


def test_a_broker_is_used_as_long_as_a_client_marks_itself(data_dir: Path, place: BrokerPlace) -> None:
    assert not place.is_used(0.0)
    mark = ClientMark(data_dir)
    assert place.is_used(1.0)
    assert not place.withdraw()
    mark.release()
    assert not place.is_used(2.0)
    assert place.withdraw()
    assert read_record(data_dir) is None


@pytest.mark.parametrize("name", ["", "run", "run/standalone.json", "run/clients.lock"])
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_broker_ends_at_once_when_something_it_is_found_by_is_removed(
    data_dir: Path, place: BrokerPlace, name: str, is_marked: bool
) -> None:
    mark = ClientMark(data_dir) if is_marked else None
    path = data_dir / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(BrokerPersistenceError, match="has been removed: no program finds the broker of"):
        place.is_used(0.0)
    assert place.has_data() == (name != "")
    place.leave()  # with nothing made anew
    assert not path.exists()
    if mark is not None:
        mark.release()


def test_a_directory_that_another_broker_has_made_anew_is_left_alone(
    data_dir: Path, place: BrokerPlace
) -> None:
    data_dir.rename(data_dir.with_name("kept"))  # so that the new one has other numbers
    other = BrokerPlace(data_dir)
    record = other.offer("127.0.0.1:2", "")
    with pytest.raises(BrokerPersistenceError, match="has been replaced"):
        place.is_used(0.0)
    assert not place.has_data()
    place.leave()
    assert read_record(data_dir) == record
    assert not other.is_used(0.0)


def test_a_broker_ends_when_its_disk_has_answered_with_errors_for_a_while(
    data_dir: Path, place: BrokerPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = open_own_file

    def fails(path: Path, *_: object) -> int:
        raise OSError(5, os.strerror(5), str(path))

    monkeypatch.setattr(embedded, "open_own_file", fails)
    assert place.is_used(10.0)
    assert place.is_used(10.0 + ERRORS_FOR_S / 2)
    monkeypatch.setattr(embedded, "open_own_file", works)
    assert not place.is_used(10.0 + ERRORS_FOR_S)
    monkeypatch.setattr(embedded, "open_own_file", fails)
    assert place.is_used(20.0)
    with pytest.raises(BrokerPersistenceError, match=r"answers with errors: .*Input/output error"):
        place.is_used(20.0 + ERRORS_FOR_S)
    with pytest.raises(BrokerPersistenceError, match="answers with errors"):
        place.withdraw()
    place.leave()


@pytest.mark.parametrize("take", [ClientMark, lambda data_dir: StartLock(data_dir).__enter__()])
def test_a_lock_whose_file_was_removed_while_it_was_waited_for_is_taken_on_the_file_that_is_there(
    data_dir: Path, take: Callable[[Path], object]
) -> None:
    prepare_run_directory(data_dir)
    name = "clients.lock" if take is ClientMark else "standalone.start"
    path = data_dir / "run" / name
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held: list[object] = []
        waiting = threading.Thread(target=lambda: held.append(take(data_dir)))
        waiting.start()
        wait_until(lambda: _times_open(path) == 2, what="the other one has opened the file")
        path.unlink()
    waiting.join(10)
    assert len(held) == 1
    with open(path) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _times_open(path: Path) -> int:
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    return count
