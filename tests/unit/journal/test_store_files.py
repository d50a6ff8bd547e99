"""The directory of a store, as its journal changes it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from pulsar_ray.journal import store_files
from pulsar_ray.journal.store_files import TERM_FILE, StoreFiles, Term, remove_partition, write_term

PARTITION = "7"


class Died(BaseException):
    """The process ends here."""


def install(root: Path, term: int) -> None:
    files = StoreFiles(root)
    files.discard_staged(PARTITION)
    files.stage(PARTITION, "manifest-1", b"of term %d" % term)
    files.install(PARTITION, term)


def test_a_partition_that_comes_back_is_in_its_place_at_each_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without something that it shipped is taken for a copy, and serves nothing any more."""
    install(tmp_path, 1)
    remove = shutil.rmtree

    def removed_and_died(path: Path, *, ignore_errors: bool) -> None:
        if path.exists():
            remove(path, ignore_errors=ignore_errors)
            raise Died

    monkeypatch.setattr(shutil, "rmtree", removed_and_died)
    with pytest.raises(Died):
        install(tmp_path, 2)
    monkeypatch.undo()
    assert StoreFiles(tmp_path).term(PARTITION) == 2
    assert (tmp_path / PARTITION / "manifest-1").read_bytes() == b"of term 2"
    install(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == [PARTITION]


def test_what_a_former_life_did_not_finish_restoring_goes(tmp_path: Path) -> None:
    StoreFiles(tmp_path).stage(PARTITION, "manifest-1", b"half of it")
    assert StoreFiles(tmp_path).partitions() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_shipped", [True, False])
def test_nobody_finds_a_half_of_a_partition_that_was_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shipped: bool
) -> None:
    """A manifest without the files that it lists would keep all of its store from being shipped."""
    install(tmp_path, 1)
    files = StoreFiles(tmp_path)
    if not is_shipped:
        (tmp_path / PARTITION / TERM_FILE).unlink()

    def died(path: Path, *, ignore_errors: bool) -> None:
        if path.exists():
            raise Died

    monkeypatch.setattr(shutil, "rmtree", died)
    with pytest.raises(Died):
        files.remove(PARTITION, 1) if is_shipped else remove_partition(tmp_path / PARTITION)
    monkeypatch.undo()
    assert not (tmp_path / PARTITION).exists()
    assert StoreFiles(tmp_path).partitions() == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_exchanges_nothing_takes_partitions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(first: Path, second: Path) -> None:
        raise OSError(errno.EINVAL, f"{first} and {second} cannot change places")

    monkeypatch.setattr(store_files, "exchange", refuses)
    for term in (1, 2):
        install(tmp_path, term)
        assert StoreFiles(tmp_path).term(PARTITION) == term
    assert [path.name for path in tmp_path.iterdir()] == [PARTITION]


@pytest.mark.parametrize("term", [None, Term(0, is_left_out=True)], ids=["made here", "moved here"])
def test_nothing_stays_of_a_removed_partition_that_was_never_shipped(
    tmp_path: Path, term: Term | None
) -> None:
    (tmp_path / PARTITION).mkdir()
    if term is not None:
        write_term(tmp_path / PARTITION, term)
    assert not StoreFiles(tmp_path).mark_dropped(PARTITION)
    assert list(tmp_path.iterdir()) == []
