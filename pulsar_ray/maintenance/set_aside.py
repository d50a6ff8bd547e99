"""Keeps the former bytes of everything that a repair replaces."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pulsar_ray.ledger.disk import SYSTEM_DISK, create_closed, make_closed

SET_ASIDE = "repaired"
"""Below the data directory; each repair has a directory there, named by its time."""


class SetAside:
    """The place of one repair's former files; made with the first of them.

    A file keeps its path below the data directory.
    """

    def __init__(self, data_directory: Path, name: str) -> None:
        self._root = data_directory
        self.path = data_directory / SET_ASIDE / name

    def place_of(self, path: Path) -> Path:
        """Where a file's former bytes are kept."""
        return self.path / path.relative_to(self._root)

    def keep(self, path: Path) -> None:
        """Keep a file durably; it may be replaced then, but not written to."""
        kept = self.place_of(path)
        make_closed(kept.parent)
        if not kept.exists():
            try:
                kept.hardlink_to(path)
            except OSError:
                shutil.copy2(path, kept)
        SYSTEM_DISK.fsync_dir(kept.parent)

    def take(self, path: Path) -> None:
        """Move a file or directory here."""
        kept = self.place_of(path)
        make_closed(kept.parent)
        os.replace(path, kept)
        SYSTEM_DISK.fsync_dir(kept.parent)
        SYSTEM_DISK.fsync_dir(path.parent)

    def keep_front(self, path: Path, length: int) -> None:
        """Keep the first bytes of a file, which may be written over then."""
        kept = self.place_of(path).with_name(f"{path.name}.front")
        make_closed(kept.parent)
        with path.open("rb") as source, create_closed(kept) as file:
            file.write(source.read(length))
            file.flush()
            os.fsync(file.fileno())
        SYSTEM_DISK.fsync_dir(kept.parent)
