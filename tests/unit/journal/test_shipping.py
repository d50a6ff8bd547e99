from __future__ import annotations

import errno

import pytest

from pulsar_ray.journal.objects import Append, unpack_journal
from pulsar_ray.journal.requests import CREATED, EXISTS, UNKNOWN, Create, Get, Wait
from pulsar_ray.journal.shipping import Cut, Shipping


def shipping(**cut: int) -> Shipping:
    return Shipping("s", 1, Cut(**cut), lambda p, f, start, end: b"x" * (end - start), lambda: b"n")


def test_an_object_is_cut_by_time_and_sooner_if_somebody_waits() -> None:
    ship = shipping()
    ship.queue(10.0, Append("p", "1-0", 0), 100)
    assert ship.due_seconds(10.0, waits_for_sync=False) == pytest.approx(0.25)
    assert ship.begin(10.1, waits_for_sync=False) == []
    assert ship.due_seconds(10.0, waits_for_sync=True) == 0.0
    (under_way,) = ship.begin(10.0, waits_for_sync=True)
    next(under_way)
    ship.queue(10.1, Append("p", "1-0", 100), 100)
    assert ship.due_seconds(10.1, waits_for_sync=True) == pytest.approx(0.005)
    with pytest.raises(StopIteration):
        under_way.send(CREATED)
    assert ship.due_seconds(10.1, waits_for_sync=True) == 0.0, "nothing else is under way"
    ship.queue(10.1, Append("p", "1-0", 200), 64 * 1024)
    assert ship.due_seconds(10.1, waits_for_sync=True) == pytest.approx(0.005), "it may be a stream"


def test_full_objects_begin_at_once_up_to_a_number_under_way() -> None:
    ship = shipping(object_bytes=100, under_way=2)
    ship.queue(0, Append("p", "1-0", 0), 350)
    tasks = ship.begin(0, waits_for_sync=False)
    bodies = [next(task) for task in tasks]
    spans = []
    for body in bodies:
        assert isinstance(body, Create)
        spans += [(a.offset, a.end) for a in unpack_journal(body.key, body.body).appends]
    assert spans == [(0, 100), (100, 200)]
    assert ship.due_seconds(9, waits_for_sync=True) is None


def test_appends_that_go_on_in_a_file_are_one() -> None:
    ship = shipping(object_bytes=100, queued_appends=2)
    for n in range(50):
        ship.queue(0, Append("p", "1-0", n), 1)
    assert ship.has_room
    (task,) = ship.begin(1, waits_for_sync=False)
    body = next(task)
    assert isinstance(body, Create)
    assert len(unpack_journal(body.key, body.body).appends) == 1


def test_nothing_is_shipped_before_all_of_it_is() -> None:
    ship = shipping(object_bytes=100)
    ship.queue(0, Append("p", "1-0", 0), 150)
    ship.begin(1, waits_for_sync=False)
    assert ship.completed(0)
    assert ship.shipped == 0
    assert ship.completed(1)
    assert ship.is_idle


def test_the_prefix_has_no_gap() -> None:
    ship = shipping(object_bytes=100)
    for n in range(2):
        ship.queue(0, Append(f"p{n}", "1-0", 0), 100)
    ship.begin(1, waits_for_sync=False)
    assert ship.completed(1) == []
    assert (ship.prefix, ship.shipped) == (0, 0)
    assert len(ship.completed(0)) == 2
    assert (ship.prefix, ship.shipped) == (2, 2)


def test_an_unknown_fate_is_repeated_and_ones_own_object_is_a_success() -> None:
    ship = shipping()
    ship.queue(0, Append("p", "1-0", 0), 10)
    (task,) = ship.begin(1, waits_for_sync=False)
    first = next(task)
    assert isinstance(first, Create)
    assert isinstance(task.send(UNKNOWN), Wait)
    assert task.send(None) == first
    assert task.send(EXISTS) == Get(first.key)
    with pytest.raises(StopIteration):
        task.send(first.body)
    assert ship.is_idle


def test_anothers_object_deposes() -> None:
    ship = shipping()
    ship.queue(0, Append("p", "1-0", 0), 10)
    (task,) = ship.begin(1, waits_for_sync=False)
    next(task)
    task.send(EXISTS)
    with pytest.raises(StopIteration):
        task.send(b"a seal")
    assert ship.is_deposed
    ship.queue(2, Append("p", "1-0", 10), 10)
    assert ship.begin(9, waits_for_sync=True) == []


def test_a_created_object_needs_no_look() -> None:
    ship = shipping()
    ship.queue(0, Append("p", "1-0", 0), 10)
    (task,) = ship.begin(1, waits_for_sync=False)
    next(task)
    with pytest.raises(StopIteration):
        task.send(CREATED)
    assert ship.shipped == 1


def shipped(ship: Shipping) -> list[Append]:
    (task,) = ship.begin(100.0, waits_for_sync=True)
    body = next(task)
    assert isinstance(body, Create)
    with pytest.raises(StopIteration):
        task.send(CREATED)
    return list(unpack_journal(body.key, body.body).appends)


def test_behind_a_file_that_was_cut_nothing_is_shipped_until_the_partition_begins_anew() -> None:
    files = {"1-0": b"xx", "manifest-1": b"yyyy"}

    def read(_: str, file: str, start: int, end: int) -> bytes:
        return files[file][start:end]

    ship = Shipping("s", 1, Cut(), read, lambda: b"n")
    ship.queue(0, Append("p", "1-0", 0), 3)
    ship.queue(0, Append("p", "manifest-1", 0), 4)
    ship.queue(0, Append("p", "", 0, mark=("gone", ("0-0",))))
    ship.queue(0, Append("other", "manifest-1", 0), 4)
    ship.queue(0, Append("p", "", 0, mark=("leave", 1)))
    assert [append.partition for append in shipped(ship)] == ["other"]
    assert "1-0 ends before byte 3" in ship.unreadable["p"]
    assert ship.is_idle
    ship.queue(0, Append("p", "", 0, mark=("adopt", (2, 0, (), {}))))
    ship.queue(0, Append("p", "1-0", 0), 2)
    assert [append.data for append in shipped(ship)] == [b"", b"xx"]
    assert not ship.unreadable


def test_what_the_disk_does_not_give_is_read_again_before_anything_behind_it() -> None:
    broken = {"1-0"}

    def read(_: str, file: str, start: int, end: int) -> bytes:
        if file in broken:
            raise OSError(errno.EMFILE, "Too many open files")
        return b"x" * (end - start)

    ship = Shipping("s", 1, Cut(object_bytes=10), read, lambda: b"n")
    for file in ("1-0", "2-0"):
        ship.queue(0, Append("p", file, 0), 10)
    assert ship.begin(0, waits_for_sync=True) == []
    assert "Too many open files" in ship.read_failure
    assert (ship.unshipped_bytes, ship.oldest_since, ship.is_idle) == (20, 0, False)
    again_s = ship.due_seconds(0, waits_for_sync=True)
    assert again_s, "it is not asked for without a pause"
    assert ship.begin(again_s / 2, waits_for_sync=True) == []
    broken.clear()
    for task in ship.begin(again_s, waits_for_sync=True):
        next(task)
        with pytest.raises(StopIteration):
            task.send(CREATED)
    assert (ship.read_failure, ship.unshipped_bytes, ship.is_idle) == ("", 0, True)
