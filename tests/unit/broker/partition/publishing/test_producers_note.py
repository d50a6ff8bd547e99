"""The note of a partition's producers, as its next life reads it."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from pulsar_ray.broker.partition.publishing.producers_note import (
    LEAST_REWRITTEN,
    NOTE,
    KnownProducer,
    ProducersNote,
)
from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk, SystemDisk


class Thread:
    """Does the work of a disk thread when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self.jobs.append((work, done))

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            try:
                result = work()
            except OSError as error:
                done(None, error)
            else:
                done(result, None)


def note_in(directory: Path, disk: Disk = SYSTEM_DISK) -> tuple[ProducersNote, Thread]:
    thread = Thread()
    return ProducersNote(directory, disk, cast("DiskThread", thread)), thread


def producer(number: int) -> KnownProducer:
    return KnownProducer(2**64 - 1 - number, f"client {number}", number)


def test_who_comes_or_goes_is_answered_once_that_is_written(tmp_path: Path) -> None:
    note, thread = note_in(tmp_path)
    answered: list[int] = []
    steps: list[Callable[[], None]] = [
        lambda: note.opened("x", producer(1)),
        lambda: note.opened("x", producer(2)),
        lambda: note.closed("x"),
        note.remove,
    ]
    for number, step in enumerate(steps):
        step()
        note.when_written(partial(answered.append, number))
        assert len(answered) == number
        thread.run()
        assert answered == list(range(number + 1))
    note.opened("x", producer(1))
    thread.run()
    note.opened("x", producer(1))
    note.closed("y")
    note.when_written(lambda: answered.append(-1))
    assert answered[-1] == -1
    assert not thread.jobs


def test_the_next_life_reads_what_was_written_last(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    names = ["x", "a name\nof two lines", "\U0001f600", '"', "\\"]
    for _ in range(5):
        note, thread = note_in(tmp_path)
        for step in range(3 * LEAST_REWRITTEN):
            name = chance.choice(names)
            if chance.random() < 0.5:
                note.opened(name, producer(step))
            else:
                note.closed(name)
            if chance.random() < 0.1:
                thread.run()
        thread.run()
        assert note_in(tmp_path)[0].noted == note.noted
        assert len((tmp_path / NOTE).read_bytes().splitlines()) <= LEAST_REWRITTEN
    assert [path.name for path in tmp_path.iterdir()] == [NOTE]


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    note, thread = note_in(tmp_path)
    note.opened("x", producer(1))
    note.opened("y", producer(2))
    thread.run()
    whole = (tmp_path / NOTE).read_bytes()
    for end in range(len(whole)):
        (tmp_path / NOTE).write_bytes(whole[:end])
        read = note_in(tmp_path)[0].noted
        assert read.items() <= note.noted.items()
        assert len(read) == whole[: end + 1].count(b"\n")
        after, thread = note_in(tmp_path)
        after.opened("z", producer(3))
        thread.run()
        after.closed("z")
        after.opened("u", producer(4))
        thread.run()
        assert note_in(tmp_path)[0].noted == {**read, "u": producer(4)}, "what comes behind is not torn"


@pytest.mark.parametrize(
    "damage", [b"[]\n", b"7\n", b'["x", 7]\n', b'["x", ["a", "b", "c"]]\n', b"\xff\n", b"{}"]
)
def test_what_is_no_line_of_it_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    note, thread = note_in(tmp_path)
    note.opened("y", producer(2))
    thread.run()
    (tmp_path / NOTE).write_bytes(
        damage + (b"" if damage.endswith(b"\n") else b"\n") + (tmp_path / NOTE).read_bytes()
    )
    assert note_in(tmp_path)[0].noted == note.noted


def test_a_sleeping_partition_leaves_none(tmp_path: Path) -> None:
    note, thread = note_in(tmp_path)
    note.remove()
    note.opened("x", producer(1))
    note.remove()
    thread.run()
    assert not note_in(tmp_path)[0].noted
    assert not list(tmp_path.iterdir())


class FillingDisk(SystemDisk):
    """Has no room for the second half of a write, while it is full."""

    is_full = False

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        if not self.is_full:
            return super().writev(fd, buffers)
        (data,) = (memoryview(buffer) for buffer in buffers)
        if len(data) < 10:
            raise OSError(errno.ENOSPC, "no space left")
        return super().writev(fd, [data[: len(data) // 2]])


def test_what_a_full_disk_refused_is_written_with_the_next(tmp_path: Path) -> None:
    disk = FillingDisk()
    note, thread = note_in(tmp_path, disk)
    note.opened("x", producer(1))
    thread.run()
    disk.is_full = True
    note.opened("y", producer(2))
    thread.run()
    note.closed("x")
    thread.run()
    disk.is_full = False
    note.opened("z", producer(3))
    thread.run()
    assert note_in(tmp_path)[0].noted == note.noted == {"y": producer(2), "z": producer(3)}


class FullDisk(SystemDisk):
    """Refuses to open files."""

    def open(self, path: Path, flags: int) -> int:
        raise OSError(errno.ENOSPC, "no space left")


def test_a_full_disk_keeps_nobody_out_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note, thread = note_in(tmp_path, FullDisk())
    answered: list[int] = []
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            note.opened(f"p{number}", producer(number))
            note.when_written(lambda: answered.append(1))
        thread.run()
    assert answered == [1, 1, 1]
    assert caplog.text.count("cannot be written") == 1
