"""Whose log file is whose: by the lines with which Ray begins it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.launch import log_files
from pulsar_ray.launch.log_files import OTHER_ACTORS, ActorLog, actors_of_topic, logs_below
from tests.other_user import SOMEBODY, needs_root

ORDERS = "persistent://public/default/orders"


def write(directory: Path, number: int, actor: str, text: str = "", stream: str = "err") -> Path:
    """A worker's file as Ray begins it: the class first, then the name that the actor gives itself."""
    path = directory / f"worker-{number:04x}-01000000-{1000 + number}.{stream}"
    path.write_text(f":job_id:01000000\n:actor_name:TopicPartition\n:actor_name:{actor}\n{text}")
    os.utime(path, (number, number))
    return path


def found(directory: Path, names: str, tail: int = 0) -> list[ActorLog]:
    return logs_below(directory, "host", names, tail)


def actors(directory: Path, names: str) -> list[str]:
    return [log.actor for log in found(directory, names)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    everything = [
        ORDERS, f"{ORDERS}-partition-0", f"{ORDERS}-partition-11", f"{ORDERS} -> audit",
        f"{ORDERS} => readers", f"{ORDERS}-partition-0 ~> audit", f"{ORDERS} -> audit2", f"{ORDERS}2",
        f"{ORDERS}2 -> audit",
        "non-persistent://public/default/orders", "Controller", "Store(/data)", "Controllers",
    ]  # fmt: skip
    for number, actor in enumerate(everything, 1):
        write(tmp_path, number, actor)
    return tmp_path


def test_a_topic_has_those_of_its_partitions_and_subscriptions(directory: Path) -> None:
    assert actors(directory, actors_of_topic(ORDERS, None)) == [
        ORDERS, f"{ORDERS}-partition-0", f"{ORDERS}-partition-11", f"{ORDERS} -> audit",
        f"{ORDERS} => readers", f"{ORDERS}-partition-0 ~> audit", f"{ORDERS} -> audit2",
    ]  # fmt: skip


def test_a_partition_has_its_own(directory: Path) -> None:
    names = actors_of_topic(f"{ORDERS}-partition-0", None)
    assert actors(directory, names) == [f"{ORDERS}-partition-0", f"{ORDERS}-partition-0 ~> audit"]


def test_a_subscription_has_its_dispatchers_and_trackers(directory: Path) -> None:
    names = actors_of_topic(ORDERS, "audit")
    assert actors(directory, names) == [f"{ORDERS} -> audit", f"{ORDERS}-partition-0 ~> audit"]


def test_what_belongs_to_no_topic_is_found(directory: Path) -> None:
    assert actors(directory, OTHER_ACTORS) == ["Controller", "Store(/data)"]


@pytest.mark.parametrize("name", ["a.*", "a(b", "a\nb", 'a"b', "ä", "a -> b"])
def test_any_name_means_itself(tmp_path: Path, name: str) -> None:
    topic = f"persistent://public/default/{name}"
    write(tmp_path, 1, topic)
    write(tmp_path, 2, "persistent://public/default/axxx")
    assert actors(tmp_path, actors_of_topic(topic, None)) == [topic]


def test_a_file_is_reported_with_process_size_and_time(tmp_path: Path) -> None:
    path = write(tmp_path, 7, ORDERS, "x\n")
    (log,) = found(tmp_path, actors_of_topic(ORDERS, None))
    assert log == ActorLog("host", str(path), ORDERS, 1007, path.stat().st_size, 7.0)


def test_last_lines_are_without_those_of_ray(tmp_path: Path) -> None:
    write(tmp_path, 1, ORDERS, "one\ntwo\nthree\n")
    write(tmp_path, 2, ORDERS)
    names = actors_of_topic(ORDERS, None)
    assert [log.tail for log in found(tmp_path, names, 2)] == [["two", "three"], []]
    assert [log.tail for log in found(tmp_path, names, 9)] == [["one", "two", "three"], []]


def test_of_a_long_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "TAIL_BYTES", 20)
    write(tmp_path, 1, ORDERS, "".join(f"line {number}\n" for number in range(1000)))
    (log,) = found(tmp_path, actors_of_topic(ORDERS, None), 9)
    assert log.tail == ["line 998", "line 999"]


def test_of_many_files_the_last_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MOST_FILES", 2)
    for number in (3, 1, 2):
        write(tmp_path, number, ORDERS)
    assert [log.modified_s for log in found(tmp_path, actors_of_topic(ORDERS, None))] == [2, 3]


def test_other_files_and_a_missing_directory_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "worker-1.err").mkdir()
    (tmp_path / "raylet.err").write_text(f"\n:actor_name:{ORDERS}\n")
    (tmp_path / "worker-2-3-4.err").write_text("")
    assert found(tmp_path, actors_of_topic(ORDERS, None)) == []
    assert found(tmp_path / "none", actors_of_topic(ORDERS, None)) == []


def test_what_others_put_there_is_passed_over(tmp_path: Path) -> None:
    """Everybody may write in Ray's directory of logs: neither links nor pipes are opened."""
    elsewhere = write(tmp_path, 1, ORDERS).rename(tmp_path / "elsewhere")
    (tmp_path / "worker-0002-01000000-2.err").symlink_to(elsewhere)
    os.mkfifo(tmp_path / "worker-0003-01000000-3.err")
    assert found(tmp_path, actors_of_topic(ORDERS, None), 9) == []


@needs_root
def test_a_file_of_another_user_says_nothing(tmp_path: Path) -> None:
    os.chown(write(tmp_path, 1, ORDERS, "all is well\n"), SOMEBODY, SOMEBODY)
    write(tmp_path, 2, ORDERS, "it is not\n").chmod(0o666)
    assert [log.tail for log in found(tmp_path, actors_of_topic(ORDERS, None), 9)] == [["it is not"]]


def test_a_pipe_that_comes_in_between_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1, ORDERS)
    listed = log_files._worker_files

    def exchanged(directory: Path) -> Iterator[os.DirEntry[str]]:
        for entry in listed(directory):
            os.unlink(entry.path)
            os.mkfifo(entry.path)
            yield entry

    monkeypatch.setattr(log_files, "_worker_files", exchanged)
    assert found(tmp_path, actors_of_topic(ORDERS, None), 9) == []
