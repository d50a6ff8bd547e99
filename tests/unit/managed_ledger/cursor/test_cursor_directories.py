"""Directories of cursors whose subscriptions are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.cursor.cursor_directories import (
    cursor_directory,
    remove_cursor,
    remove_forgotten,
)


def made(log: Path, *names: str) -> None:
    for name in names:
        directory = cursor_directory(log, 0).with_name(name)
        directory.mkdir(parents=True)
        (directory / "epoch").write_bytes(b"x")


def names(log: Path) -> set[str]:
    return {path.name for path in cursor_directory(log, 0).parent.iterdir()}


def test_what_no_subscription_has_any_more_goes_and_nothing_else(tmp_path: Path) -> None:
    made(tmp_path, "1", "2", "3.new", "4", "4.new", "7", "8.new", "notes", "5x", "6.old")
    remove_forgotten(tmp_path, {1, 4}, end=7)
    assert names(tmp_path) == {"1", "4", "4.new", "7", "8.new", "notes", "5x", "6.old"}


def test_a_log_without_subscriptions_has_nothing_to_remove(tmp_path: Path) -> None:
    remove_forgotten(tmp_path, set(), end=1)
    remove_cursor(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []


def test_the_cursor_of_a_removed_subscription_goes(tmp_path: Path) -> None:
    made(tmp_path, "1", "2", "2.new", "22")
    remove_cursor(tmp_path, 2)
    assert names(tmp_path) == {"1", "22"}


def test_what_cannot_be_listed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, "1")

    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("os.listdir", refuse)
        remove_forgotten(tmp_path, set(), end=2)
    assert "Permission denied" in caplog.text
    assert names(tmp_path) == {"1"}
