"""The files of a partition that moves: whole, checked, fenced, and deleted by the move's id alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from pulsar_ray.errors import ChecksumError, Fenced, NotAllowedError, WrongNode
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.store_files import read_term
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.ledger.segment_file import parse_segment_name, segment_name
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.move_note import ARRIVING, DEPARTING, MOVE_NOTE, read_move_note
from pulsar_ray.model.message_id import EARLIEST
from pulsar_ray.moving.moved_files import FinalFiles, MovedFiles
from tests.power_cut import PowerCut, PowerCutDisk
from tests.stored_blocks import IDENTITY, abandon, append, change, settings
from tests.stored_directory import newest
from tests.unit.managed_ledger.log.test_log_recovery import entries

NUMBER = IDENTITY.number
MOVE = "m1"


def opened(store: Path) -> ManagedLedger:
    directory = store / "p" / str(NUMBER)
    term = read_term(directory)
    return ManagedLedger.open(
        directory, IDENTITY, settings(), 0, first_ledger=0 if term is None else term.first_ledger
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    log = opened(tmp_path / "a")
    append(log, 0, 1, 2)
    log.close()
    return tmp_path / "a"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    return tmp_path / "b"


def files(store: Path) -> MovedFiles:
    return MovedFiles(store / "p")


def copy(source: Path, target: Path, ends: dict[str, int], move_id: str = MOVE, chunk: int = 100) -> None:
    for file, end in ends.items():
        at = files(target).has(NUMBER, move_id, file)
        while at < end:
            data, total = files(source).read(NUMBER, file, at, min(chunk, end - at))
            assert files(target).put(NUMBER, move_id, file, at, data, total)
            at += len(data)


def moved(source: Path, target: Path, move_id: str = MOVE) -> FinalFiles:
    """Have all of the source installed at the target."""
    files(target).begin(NUMBER, move_id)
    copy(source, target, files(source).listed(NUMBER), move_id)
    final = files(source).fence(NUMBER, move_id)
    assert final is not None
    files(target).cut(NUMBER, move_id, final.ends)
    copy(source, target, final.ends, move_id)
    files(target).install(NUMBER, move_id, final)
    return final


def test_the_target_goes_on_where_the_source_was(source: Path, target: Path) -> None:
    before = opened(source)
    was, epoch = entries(before), before.epoch
    before.close()
    moved(source, target)
    assert read_move_note(target / "p" / str(NUMBER)) == (1, ARRIVING, MOVE)
    assert read_move_note(source / "p" / str(NUMBER)) == (0, DEPARTING, MOVE)
    log = opened(target)
    assert read_move_note(target / "p" / str(NUMBER)) == (1, "", "")
    assert entries(log) == was
    assert log.epoch > epoch
    append(log, 3)
    assert [seq for _, seq in entries(log)] == [0, 1, 2, 3]
    positions = [position for position, _ in entries(log)]
    assert positions == sorted(set(positions))
    log.close()


def test_what_recovery_would_take_in_moves_too(source: Path, target: Path) -> None:
    """A damaged manifest may be fenced before anybody recovers it."""
    log = opened(source)
    manifest = newest(log.directory.glob("manifest-*"))
    size = manifest.stat().st_size
    append(log, 3)
    append(log, 4)
    was = entries(log)
    abandon(log)
    os.truncate(manifest, size)
    moved(source, target)
    log = opened(target)
    assert entries(log) == was
    log.close()


def test_a_disk_without_room_for_the_arrival_keeps_nobody_out_for_ever(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(source, target)
    with monkeypatch.context() as full:

        def refuses(*_: object) -> None:
            raise OSError(errno.ENOSPC, "no room")

        full.setattr(SYSTEM_DISK, "rename", refuses)
        with pytest.raises(OSError, match="no room"):
            opened(target)
    log = opened(target)
    assert read_move_note(log.directory).state == ""
    log.close()


def test_a_former_owner_confirms_nothing_behind_the_fence(source: Path) -> None:
    log = opened(source)
    append(log, 3)
    log._files.owner._lock.release()  # as if its process had lost it, and did not know
    final = files(source).fence(NUMBER, MOVE)
    assert final is not None
    assert files(source).is_fenced_as(NUMBER, final.epoch)
    with pytest.raises(Fenced):
        append(log, 4)
    abandon(log)
    opened(source).close()
    assert not files(source).is_fenced_as(NUMBER, final.epoch)
    # Who opens it again serves on: the move was broken off.
    assert read_move_note(source / "p" / str(NUMBER)).state == ""


def test_cursors_travel_and_are_fenced(source: Path, target: Path) -> None:
    log = opened(source)
    subscription = change(log, log.changes.register("s", True, "earliest"))
    log.close()
    place = cursor_directory(source / "p" / str(NUMBER), subscription.number)
    CursorStore.create(place, CursorSubscription("s", True, {}), EARLIEST).close()
    before = (place / "epoch").read_bytes()
    final = moved(source, target)
    assert any(file.startswith("s/") for file in final.ends)
    assert (place / "epoch").read_bytes() != before
    there = cursor_directory(target / "p" / str(NUMBER), subscription.number)
    assert (there / "epoch").read_bytes() == (place / "epoch").read_bytes()


def test_bytes_that_changed_on_the_way_are_refused(source: Path, target: Path) -> None:
    files(target).begin(NUMBER, MOVE)
    with pytest.raises(ChecksumError, match="other bytes"):
        files(target).put(NUMBER, MOVE, "x", 0, b"other", checksum(b"sent"))
    assert not files(target).has(NUMBER, MOVE, "x")


def test_a_file_that_differs_from_what_was_copied_begins_anew(target: Path) -> None:
    files(target).begin(NUMBER, MOVE)
    assert files(target).put(NUMBER, MOVE, "x", 0, b"torn", checksum(b"torn"))
    assert not files(target).put(NUMBER, MOVE, "x", 2, b"RN and more", checksum(b"RN and more"))
    assert files(target).has(NUMBER, MOVE, "x") == 0
    assert files(target).put(NUMBER, MOVE, "x", 0, b"whole", checksum(b"whole"))
    assert files(target).put(NUMBER, MOVE, "x", 3, b"le text", checksum(b"le text"))
    assert files(target).has(NUMBER, MOVE, "x") == len(b"whole text")


def test_what_is_not_listed_or_too_long_is_cut(source: Path, target: Path) -> None:
    files(target).begin(NUMBER, MOVE)
    for name in ("gone", "long"):
        files(target).put(NUMBER, MOVE, name, 0, b"12345", checksum(b"12345"))
    files(target).cut(NUMBER, MOVE, {"long": 3})
    assert [files(target).has(NUMBER, MOVE, name) for name in ("gone", "long")] == [0, 3]


def test_nothing_is_installed_that_is_not_whole(source: Path, target: Path) -> None:
    files(target).begin(NUMBER, MOVE)
    final = files(source).fence(NUMBER, MOVE)
    assert final is not None
    with pytest.raises(WrongNode, match="0 bytes"):
        files(target).install(NUMBER, MOVE, final)
    assert not (target / "p" / str(NUMBER)).exists()


def test_installing_may_be_repeated_and_comes_too_late_for_another_move(source: Path, target: Path) -> None:
    final = moved(source, target)
    files(target).install(NUMBER, MOVE, final)
    with pytest.raises(NotAllowedError, match="is there already"):
        files(target).begin(NUMBER, "m2")
    files(target).discard(NUMBER, MOVE)
    files(target).begin(NUMBER, "m2")
    with pytest.raises(NotAllowedError, match="broken off"):
        files(target).install(NUMBER, MOVE, final)


def test_only_the_very_move_discards_or_clears(source: Path, target: Path) -> None:
    moved(source, target)
    files(target).discard(NUMBER, "late")
    assert not files(source).clear(NUMBER, "late")
    assert (target / "p" / str(NUMBER)).exists()
    assert (source / "p" / str(NUMBER)).exists()
    opened(target).close()
    files(target).discard(NUMBER, MOVE)  # it came late: it is served there by now
    assert (target / "p" / str(NUMBER)).exists()
    assert files(source).clear(NUMBER, MOVE)
    assert not (source / "p" / str(NUMBER)).exists()
    assert not files(source).clear(NUMBER, MOVE)


def test_a_power_cut_brings_no_half_of_a_removed_partition_back(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(source, target)
    disk = PowerCutDisk(target)
    disk.install(monkeypatch)
    for path in (target, target / "p", target / "p" / str(NUMBER)):
        disk.fsync_dir(path)

    def cut_off(directory: Path, ignore_errors: bool) -> None:
        if directory.exists():
            (directory / MOVE_NOTE).unlink()
            raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut_off)
        with pytest.raises(PowerCut):
            files(target).discard(NUMBER, MOVE)
    assert not (disk.left(tmp_path / "found") / "p" / str(NUMBER)).exists()


def test_a_place_that_is_in_use_takes_no_move(source: Path) -> None:
    with pytest.raises(NotAllowedError, match="is there already"):
        files(source).begin(NUMBER, MOVE)


def test_what_is_of_moves_is_found(source: Path, target: Path) -> None:
    moved(source, target)
    files(target).begin(8, "m2")
    assert files(source).noted() == [(NUMBER, DEPARTING, MOVE)]
    assert files(target).noted() == [(NUMBER, ARRIVING, MOVE), (8, "", "m2")]
    files(target).discard(8, "m2")
    files(target).discard(NUMBER, MOVE)
    assert files(target).noted() == []


def test_one_damaged_note_hides_no_rests_of_other_moves(source: Path, target: Path) -> None:
    moved(source, target)
    other = target / "p" / str(NUMBER + 1)
    other.mkdir()
    (other / "moved").write_bytes(b"")
    assert files(target).noted() == [(NUMBER, ARRIVING, MOVE)]


def test_what_was_never_opened_has_nothing_to_move(target: Path) -> None:
    assert files(target).listed(NUMBER) == {}
    assert files(target).fence(NUMBER, MOVE) is None


def test_a_log_without_its_epoch_does_not_count_as_empty(source: Path) -> None:
    (source / "p" / str(NUMBER) / "epoch").unlink()
    with pytest.raises(WrongNode, match="epoch"):
        files(source).fence(NUMBER, MOVE)


def test_numbers_of_ledgers_that_nobody_listed_are_not_used_again(source: Path, target: Path) -> None:
    directory = source / "p" / str(NUMBER)
    ledger_id = max(found[0] for path in directory.iterdir() if (found := parse_segment_name(path.name)))
    (directory / segment_name(ledger_id + 40, 0)).write_bytes(b"of a former owner, and in no manifest")
    moved(source, target)
    log = opened(target)
    append(log, 3)
    assert entries(log)[-1][0].ledger_id == ledger_id + 41
    log.close()


def test_there_and_back_counts_the_moves(source: Path, target: Path) -> None:
    moved(source, target)
    opened(target).close()
    shutil.rmtree(source / "p" / str(NUMBER))
    moved(target, source, "m2")
    assert read_move_note(source / "p" / str(NUMBER)).rank == (False, 2)
    opened(source).close()
    assert read_move_note(source / "p" / str(NUMBER)).rank > read_move_note(target / "p" / str(NUMBER)).rank
