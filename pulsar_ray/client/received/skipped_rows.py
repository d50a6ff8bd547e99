"""What a seek into a batch, or a reader that starts inside one, leaves out of that batch."""

from __future__ import annotations

from pulsar_ray.model.generation import seeks_of
from pulsar_ray.model.row_ranges import NO_ROWS, RowRanges


class SkippedRows:
    """Of one partition; ends with the next seek, whoever makes it. The consumer's lock guards it."""

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None
        self._seeks = 0

    def begin(self, skip: tuple[int, int, int] | None, generation: int) -> None:
        """`skip` are (ledger id, entry id, rows): so many from its start on do not count, in a generation of
        as many seeks.
        """
        self._of, self._seeks = skip, seeks_of(generation)

    def end(self) -> None:
        """The subscription was sought again."""
        self._of = None

    def numbered_anew(self, generation: int) -> None:
        """Another dispatcher counts seeks anew."""
        self._seeks = seeks_of(generation)

    def of(self, key: tuple[int, int], batch_size: int, generation: int) -> RowRanges:
        """The rows of this batch, delivered in this generation, that are left out."""
        if self._of is None or self._of[:2] != key or self._seeks != seeks_of(generation):
            return NO_ROWS
        return ((0, min(self._of[2], batch_size)),)
