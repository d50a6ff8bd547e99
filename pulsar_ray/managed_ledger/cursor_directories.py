"""Where the cursors of a log's subscriptions are, and removing those whose subscription is gone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

UNFINISHED = ".new"
"""Behind the name of a directory that a cursor is made in."""
_NAME = re.compile(r"(\d+)(?:\.new)?\Z")


def cursor_directory(log_directory: Path, number: int) -> Path:
    """That of the subscription of this number."""
    return log_directory / "s" / str(number)


def remove_cursor(log_directory: Path, number: int) -> None:
    """What is left of a subscription that was removed durably; what cannot be removed stays."""
    directory = cursor_directory(log_directory, number)
    for path in (directory, directory.with_name(directory.name + UNFINISHED)):
        shutil.rmtree(path, ignore_errors=True)


def remove_forgotten(log_directory: Path, registered: Collection[int], end: int) -> None:
    """The same of all subscriptions with numbers below `end` that are not registered.

    A subscription gets its directory behind its registration, and no number is given out twice.
    """
    parent = cursor_directory(log_directory, 0).parent
    names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
    for number in {int(match[1]) for match in map(_NAME.match, names) if match}:
        if number < end and number not in registered:
            remove_cursor(log_directory, number)
