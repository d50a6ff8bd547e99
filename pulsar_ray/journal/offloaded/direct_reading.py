"""Tools read offloaded segments without a broker, straight from the object store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pulsar_ray.errors import RemoteStoreUnavailable
from pulsar_ray.journal.offloaded.segment_door import Wanted, read_piece
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.journal.storage.object_store import ObjectStore
from pulsar_ray.journal.store_files import noted_url
from pulsar_ray.ledger.offloaded import Piece, fetch_from_store, reading_by


class _Direct:
    """Asks the node's store, and the object store where none runs."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._store: ObjectStore | None = None

    def fetch(self, path: Path, piece: Piece, wait_s: float) -> int:
        """Return a descriptor of a piece.

        Raises RemoteStoreUnavailable, RemoteStoreRefused, and JournalDamaged, which names the object.
        """
        if self._store is None:
            try:
                return fetch_from_store(path, piece, 0.0 if noted_url(self._data_dir) else wait_s)
            except RemoteStoreUnavailable:
                if not (url := noted_url(self._data_dir)):
                    raise
                self._store = open_object_store(url)
        fd = os.memfd_create("piece", os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(read_piece(self._store, Wanted(path.parent.name, path.name, piece)))
        except BaseException:
            os.close(fd)
            raise
        return fd


@contextlib.contextmanager
def reading_directly(data_dir: Path) -> Iterator[None]:
    """Let this process read what a data directory has only in the object store."""
    with reading_by(_Direct(data_dir).fetch):
        yield
