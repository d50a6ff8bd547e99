"""Where the cursors of a log's subscriptions are, and removing those whose subscription is gone."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

logger = logging.getLogger(__name__)

UNFINISHED = ".new"
"""Behind the name of a directory that a cursor is made in."""
_NAME = re.compile(r"(\d+)(?:\.new)?\Z")


def cursor_directory(log_directory: Path, number: int) -> Path:
    """The cursor directory of the subscription of this number."""
    return log_directory / "s" / str(number)


def subscription_numbers(log_directory: Path) -> list[int]:
    """The numbers of all subscriptions that have a cursor directory."""
    directory = cursor_directory(log_directory, 0).parent
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def remove_cursor(log_directory: Path, number: int) -> None:
    """Remove the directory of a subscription that was removed durably.

    Files that cannot be removed stay.
    """
    directory = cursor_directory(log_directory, number)
    for path in (directory, directory.with_name(directory.name + UNFINISHED)):
        shutil.rmtree(path, ignore_errors=True)


def remove_forgotten(log_directory: Path, registered: Collection[int], end: int) -> None:
    """Remove the directories of unregistered subscriptions with numbers below `end`.

    A subscription gets its directory behind its registration, and no number is given out twice. Raises
    nothing: what cannot be listed stays too.
    """
    try:
        names = os.listdir(cursor_directory(log_directory, 0).parent)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("cursors of removed subscriptions stay: %s", error)
        return
    for number in {int(match[1]) for match in map(_NAME.match, names) if match}:
        if number < end and number not in registered:
            remove_cursor(log_directory, number)
