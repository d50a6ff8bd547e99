"""The file that shows a client whether it can read a partition's segments."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from pulsar_ray.ledger.disk import Disk, write_fully

logger = logging.getLogger(__name__)


class ReachFile:
    """A random value beside the segments: who can read it back can read the segments.

    Each start has a value of its own, for a copy of the directory somewhere else has the former one.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._path = directory / "reach"
        self._disk = disk
        self.proof = ("", "")
        """The path and the value; both are empty until the file is written.

        As long as they are, consumers are sent the bytes.
        """

    @property
    def is_written(self) -> bool:
        """Whether clients may read the segments themselves."""
        return bool(self.proof[0])

    def write(self) -> None:
        """Write a new value, unless that is done or the disk refuses."""
        if self.is_written:
            return
        value = secrets.token_hex(16)
        staged = self._path.with_suffix(".new")
        try:
            fd = self._disk.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                write_fully(self._disk, fd, value.encode())
            finally:
                self._disk.close(fd)
            self._disk.rename(staged, self._path)
        except OSError as error:
            logger.warning("%s cannot be written, so consumers are sent all bytes: %s", self._path, error)
            with contextlib.suppress(OSError):
                self._disk.unlink(staged)
            return
        self.proof = (str(self._path), value)
