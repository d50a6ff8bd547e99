"""Writing segment files; used by one thread at a time, the one that commits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.disk import Disk

MAX_BUFFERS_PER_WRITE = 1024  # IOV_MAX


class LedgerWriter:
    """The one open segment file. A failed write or sync is never repeated on it: open another segment."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._fd = -1

    def open_segment(self, path: Path) -> None:
        """Create the file of a new segment; raises FileExistsError rather than write into another owner's."""
        self.close()
        self._fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def append(self, buffers: Sequence[Buffer], total_bytes: int) -> None:
        """Write all buffers, uncopied; they are durable when it returns."""
        disk, fd = self._disk, self._fd
        written = disk.writev(fd, buffers) if len(buffers) <= MAX_BUFFERS_PER_WRITE else 0
        if written != total_bytes:
            self._write_rest(buffers, written)
        disk.fdatasync(fd)

    def _write_rest(self, buffers: Sequence[Buffer], written: int) -> None:
        """Loop over the iovec limit and short writes; `written` bytes are done."""
        index = 0
        while index < len(buffers):
            length = memoryview(buffers[index]).nbytes
            if written >= length:
                written -= length
                index += 1
                continue
            batch = list(buffers[index : index + MAX_BUFFERS_PER_WRITE])
            batch[0] = memoryview(batch[0]).cast("B")[written:]
            written += self._disk.writev(self._fd, batch)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)
