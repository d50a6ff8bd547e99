"""A disk that remembers what it was made to keep, and what is left of it when the power goes."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger import disk as disks
from pulsar_ray.ledger.disk import SystemDisk

_PAGE = 4096


class PowerCut(BaseException):
    """The power went in the middle of a call."""


class PowerCutDisk(SystemDisk):
    """The real disk; knows which contents and which names were synced.

    Everything else may be gone after a power cut: all of it, or any pages of it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[int, Path] = {}
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        """By the directory's number, which a rename leaves as it is."""
        self.calls_left = -1
        """The power goes before the call of that number; -1: never."""
        self.ignored_suffix = "none"
        """Syncs of files of this suffix do nothing: for a test of the tests."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of the system's disk, for whoever has a reference to that."""
        for name in ("open", "close", "writev", "pwrite", "fdatasync", "fsync_dir", "rename", "unlink"):
            patch.setattr(disks.SYSTEM_DISK, name, getattr(self, name), raising=True)

    def _enter(self) -> None:
        if self.calls_left == 0:
            raise PowerCut
        self.calls_left -= 1

    def open(self, path: Path, flags: int) -> int:
        self._enter()
        is_new = not path.exists()
        fd = os.open(path, flags, 0o600)
        self._paths[fd] = path
        if is_new:
            # The number of a file that was removed.
            self._contents.pop(os.fstat(fd).st_ino, None)
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        os.close(fd)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        self._enter()
        return os.writev(fd, buffers)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        self._enter()
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._enter()
        found = os.fstat(fd)
        if self._paths[fd].suffix != self.ignored_suffix:
            # By the descriptor: the file may have another name by now.
            self._contents[found.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def fsync_dir(self, path: Path) -> None:
        self._enter()
        self._names[path.stat().st_ino] = {each.name: each.stat().st_ino for each in path.iterdir()}

    def rename(self, source: Path, target: Path) -> None:
        self._enter()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._enter()
        super().unlink(path)

    def left(self, target: Path, rng: random.Random | None = None) -> Path:
        """Make a directory as it is found after the cut; with `rng` some unsynced pages have survived."""
        self._restore(self._root.absolute(), target, rng)
        return target

    def _restore(self, source: Path, target: Path, rng: random.Random | None) -> None:
        target.mkdir(parents=True)
        now = {each.name: each for each in source.iterdir()}
        by_number = {each.stat().st_ino: each for each in now.values()}
        for name, number in self._names.get(source.stat().st_ino, {}).items():
            path = by_number.get(number)
            if path is not None and path.is_dir():
                self._restore(path, target / name, rng)
                continue
            content = self._contents.get(number, b"")
            if rng is not None and path is not None:
                content = _with_some_pages(content, path.read_bytes(), rng)
            (target / name).write_bytes(content)


def _with_some_pages(synced: bytes, written: bytes, rng: random.Random) -> bytes:
    """Some of the pages that were written since the last sync are on the disk, others are not."""
    size = rng.choice([len(synced), len(written), rng.randint(0, max(len(written), 1))])
    content = bytearray(synced.ljust(max(size, len(synced)), b"\0"))
    for start in range(0, len(written), _PAGE):
        if rng.random() < 0.5:
            page = written[start : start + _PAGE]
            content[start : start + len(page)] = page
    return bytes(content)
