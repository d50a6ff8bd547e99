from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from pulsar_ray_spark.java import UNPACKING_S, remove_java_libraries

LIBRARY = "libcore_worker_library_java.so"


def unpacked(ray_directory: Path, name: str, age_s: float) -> Path:
    directory = ray_directory / name
    directory.mkdir(parents=True)
    then = time.time() - age_s
    for child in ("file_lock", LIBRARY):
        (directory / child).write_bytes(b"library")
        os.utime(directory / child, (then, then))
    os.utime(directory, (then, then))
    return directory


def test_a_killed_jvms_library_is_removed_and_a_new_one_stays(tmp_path: Path) -> None:
    old = unpacked(tmp_path, "1795406494819", UNPACKING_S + 60)
    new = unpacked(tmp_path, "1795406513678", 1)
    remove_java_libraries(tmp_path)
    assert not old.exists()
    assert new.exists()


def test_an_old_directory_whose_library_is_being_written_stays(tmp_path: Path) -> None:
    directory = unpacked(tmp_path, "1795406494819", UNPACKING_S + 60)
    (directory / LIBRARY).touch()
    remove_java_libraries(tmp_path)
    assert directory.exists()


def test_a_loaded_library_is_removed_at_once(tmp_path: Path) -> None:
    directory = unpacked(tmp_path, "1795406494819", 1)
    with (
        (directory / LIBRARY).open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping,
    ):
        remove_java_libraries(tmp_path)
        assert not directory.exists()
        assert mapping[:] == b"library"


@pytest.mark.parametrize("name", ["session_2026-11-23_04-01-10_200783_1", "17x", "prom"])
def test_what_has_another_name_stays(tmp_path: Path, name: str) -> None:
    directory = unpacked(tmp_path, name, UNPACKING_S + 60)
    remove_java_libraries(tmp_path)
    assert directory.exists()


def test_a_directory_with_anything_else_stays(tmp_path: Path) -> None:
    directory = unpacked(tmp_path, "1795406494819", UNPACKING_S + 60)
    (directory / "notes").touch()
    then = time.time() - UNPACKING_S - 60
    os.utime(directory, (then, then))
    os.utime(directory / "notes", (then, then))
    remove_java_libraries(tmp_path)
    assert (directory / "notes").exists()


def test_nothing_there_is_no_error(tmp_path: Path) -> None:
    remove_java_libraries(tmp_path / "none")


def test_a_link_in_the_place_of_a_copy_stays_and_so_does_what_it_leads_to(tmp_path: Path) -> None:
    foreign = unpacked(tmp_path / "foreign", "1795406494819", UNPACKING_S + 60)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "1795406494819").symlink_to(foreign)
    (tmp_path / "link").symlink_to(tmp_path / "foreign")
    for directory in (tmp_path / "ray", tmp_path / "link"):
        remove_java_libraries(directory)
    assert (foreign / LIBRARY).exists()
