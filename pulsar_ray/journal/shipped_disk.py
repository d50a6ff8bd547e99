"""A disk tells which bytes of which files are durable, for them to be shipped.

A file is told when its bytes are synced and its name is: a new one waits for the sync of its folder. One that
is unlinked is told as gone, and stays until the store has shipped that nothing lists it (ADR 0124).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.disk import SystemDisk

_SHIPPED = re.compile(r"(?:[0-9]+-[0-9a-z-]+\.seg|manifest-[0-9.]*[0-9]|(?:s/[0-9]+/)?cursor-[0-9.]*[0-9])\Z")


def is_shipped(name: str) -> bool:
    """Return whether a file of a partition, named from its directory, belongs into the journal."""
    return _SHIPPED.match(name) is not None


class Told(Protocol):
    """Takes what is durable here; called on whatever thread wrote it."""

    def synced(self, name: str, end: int) -> None:
        """Note that a file is durable up to this end."""

    def gone(self, name: str) -> bool:
        """Note that nothing lists a file; return whether the store removes it."""


class _Open:
    __slots__ = ("end", "has_name", "noted_end", "path")

    def __init__(self, path: Path, has_name: bool) -> None:
        self.path = path
        self.has_name = has_name
        """Whether the name is durable."""
        self.end = self.noted_end = 0


class ShippedDisk(SystemDisk):
    """The real disk, for the files below one partition's directory."""

    def __init__(self, root: Path, told: Told) -> None:
        self._root = root
        self._told = told
        self._open: dict[int, _Open] = {}

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        if flags & os.O_CREAT and flags & (os.O_EXCL | os.O_TRUNC):
            self._open[fd] = _Open(path, has_name=False)
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        super().close(fd)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        written = os.writev(fd, buffers)
        if (file := self._open.get(fd)) is not None:
            file.end += written
        return written

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)
        if (file := self._open.get(fd)) is not None and file.has_name:
            self._tell(file)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        for file in list(self._open.values()):
            if file.path == source:
                file.path, file.has_name = target, False
            elif source in file.path.parents:
                file.path, file.has_name = target / file.path.relative_to(source), False
                file.noted_end = 0

    def fsync_dir(self, path: Path) -> None:
        super().fsync_dir(path)
        for file in list(self._open.values()):
            if not file.has_name and path in (file.path.parent, file.path.parent.parent):
                file.has_name = file.path.parent == path or is_shipped(self._name(file.path))
                self._tell(file)

    def unlink(self, path: Path) -> None:
        name = self._name(path)
        if not (is_shipped(name) and self._told.gone(name)):
            super().unlink(path)

    def note_durable(self, path: Path) -> None:
        if is_shipped(name := self._name(path)):
            self._told.synced(name, path.stat().st_size)

    def _tell(self, file: _Open) -> None:
        if file.end > file.noted_end and is_shipped(name := self._name(file.path)):
            file.noted_end = file.end
            self._told.synced(name, file.end)

    def _name(self, path: Path) -> str:
        try:
            return path.relative_to(self._root).as_posix()
        except ValueError:
            return ""
