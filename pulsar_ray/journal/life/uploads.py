"""Uploads pieces of a store's files, and reads those again until the disk gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.life.directory import Directory
from pulsar_ray.journal.objects import pack_piece, piece_key
from pulsar_ray.journal.partition_state import FileState, PartitionState
from pulsar_ray.journal.reading import create
from pulsar_ray.journal.requests import Task, Wait, pauses_s

PIECE_BYTES = 8 * 1024 * 1024
T = TypeVar("T")


class Uploads:
    """Makes pieces of the files of one directory; ends of up to `inline_bytes` stay without."""

    def __init__(self, directory: Directory, inline_bytes: int) -> None:
        self._directory = directory
        self.inline_bytes = inline_bytes
        self.disk_failures: dict[str, str] = {}
        """Why files of partitions are not read now; they are tried again."""

    def from_disk(self, partition: str, read: Callable[[], T]) -> Task[T]:
        """Read from this directory, again until the disk gives it."""
        pauses = pauses_s()
        try:
            while True:
                try:
                    return read()
                except OSError as error:
                    self.disk_failures[partition] = str(error)
                yield Wait(next(pauses))
        finally:
            self.disk_failures.pop(partition, None)

    def is_here(self, partition: str, term: int) -> bool:
        """Return whether the partition is here in that term."""
        return partition in self._directory.partitions() and self._directory.term(partition) == term

    def upload(
        self, partition: str, state: PartitionState, inline_bytes: int
    ) -> Task[dict[str, bytes] | None]:
        """Upload pieces of files; return the bytes behind them, None without files."""
        tails = {}
        for name, file in state.files.items():
            while file.length - file.base > inline_bytes:
                end = min(file.length, file.base + PIECE_BYTES)
                read = partial(self._directory.read, partition, name, file.base, end)
                data = yield from self.from_disk(partition, read)
                if len(data) < end - file.base:
                    return None
                key, body = piece_key(partition, name, file.base, end), pack_piece(data)
                if (yield from create(key, body)) is not None:
                    raise JournalDamaged(f"two contents of one piece: {key}")
                file.cover(end, checksum(data))
            read = partial(self._directory.read, partition, name, file.base, file.length)
            tails[name] = yield from self.from_disk(partition, read)
            if not self.is_here(partition, state.term) or len(tails[name]) < file.length - file.base:
                return None
        return tails

    def adoption(
        self, partition: str, ends: dict[str, int] | None = None, restored: PartitionState | None = None
    ) -> Task[Any]:
        """Upload what no piece of an adopted partition has, and return its state."""
        state = PartitionState(self._directory.term(partition))
        state.left = self._directory.left(partition)
        if ends is None:
            ends = yield from self.from_disk(partition, partial(self._directory.lengths, partition))
        for name, length in ends.items():
            offloaded = self._directory.offloaded(partition, name)
            if offloaded == [] and (restored is None or name not in restored.files):
                continue  # its note is damaged, and no reader finds it either
            pieces = offloaded or []
            if not pieces and restored is not None and name in restored.files:
                pieces = large_pieces(restored.files[name].pieces, length)
            state.files[name] = FileState(pieces, length, None)
        tails = yield from self.upload(partition, state, self.inline_bytes)
        if tails is None:
            raise JournalDamaged(f"{partition} changed while it was adopted")
        return state.pack(tails)


def large_pieces(pieces: Sequence[tuple[int, int, int]], length: int) -> list[tuple[int, int, int]]:
    """Return the pieces of a file, none where larger ones are better."""
    kept = [piece for piece in pieces if piece[1] <= length]
    return kept if len(kept) <= 2 + length // (PIECE_BYTES // 2) else []
