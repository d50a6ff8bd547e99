"""A store's directory, as one life of its journal sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pulsar_ray.format.checksum import Buffer


class Directory(Protocol):
    """All of it is synced here; `StoreFiles` is the real one."""

    def partitions(self) -> list[str]:
        """Return the partitions that are here."""

    def term(self, partition: str) -> int:
        """Return the term in which the partition is here."""

    def left(self, partition: str) -> set[int]:
        """Return the terms in which the partition left."""

    def lengths(self, partition: str) -> dict[str, int]:
        """Return the lengths of the files."""

    def read(self, partition: str, file: str, start: int, end: int) -> bytes:
        """Return bytes of a file, fewer if they are not there."""

    def recover(self, partition: str) -> None:
        """Recover the partition's files and sync them; delete nothing that the manifest lists."""

    def enter(self, partition: str, files: Iterable[str]) -> None:
        """Note durably that a partition with these files is in the journal."""

    def mend_term(self, partition: str, term: int, is_left: bool) -> None:
        """Write a term that nobody can read anew, as the store's own journal has it.

        Nothing was ever served here in a later one: that is in the journal before it is claimed.
        """

    def leave_out(self, partition: str) -> None:
        """Note durably that a partition is not in the journal any more."""

    def is_dropped(self, partition: str) -> bool:
        """Return whether the partition is no more, and has to go from the journal."""

    def has(self, partition: str, file: str) -> bool:
        """Return whether a file is here, or a note of its pieces, listed or not."""

    def is_superseded(self, partition: str, file: str) -> bool:
        """Return whether a file is not here because something later here stands for it."""

    def discard_staged(self, partition: str) -> None:
        """Forget what was staged and not installed."""

    def stage(self, partition: str, file: str, data: Buffer) -> None:
        """Add bytes to a file that will be installed."""

    def install(self, partition: str, term: int) -> None:
        """Install the staged files durably, wholly or not at all, and recover them."""

    def note_left(self, partition: str) -> None:
        """Note durably that the partition left in its present term."""

    def remove(self, partition: str, term: int) -> None:
        """Remove the partition if it is here in that term."""

    def unlink_files(self, partition: str, files: tuple[str, ...]) -> None:
        """Remove files that nothing here lists any more."""

    def offloaded(self, partition: str, file: str) -> list[tuple[int, int, int]] | None:
        """Return the pieces of an offloaded file, None for one that is here.

        Of a damaged note there are none.
        """

    def offload(self, partition: str, file: str, pieces: list[tuple[int, int, int]]) -> bool:
        """Note durably which pieces have a file, and remove it; False without it."""

    def closed(self, partition: str, is_staged: bool = False) -> dict[str, int]:
        """Return the lengths of segments that the manifest has as closed, without compacted ones."""

    def stage_note(self, partition: str, file: str, pieces: list[tuple[int, int, int]]) -> None:
        """Note which pieces have all of a file that will be installed."""

    def fetch_back(self, partition: str, file: str, start: int, data: Buffer) -> None:
        """Add bytes to a file that is to be here again."""

    def end_fetching(self, partition: str, file: str) -> None:
        """Give a file that was fetched back its place, durably, and remove its note."""
