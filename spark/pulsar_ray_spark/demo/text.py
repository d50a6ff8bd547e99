"""The demo's input: lines of text files by module, and fingerprints to compare them by."""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_NOT_THE_STANDARD_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(slots=True)
class Tally:
    """Counts and checksums of one module's lines.

    `text_crc` is the CRC-32 of all lines in their order, so that it tells a line that is lost, doubled,
    changed or out of order. `line_crcs` is the sum of each line's, whatever their order.
    """

    lines: int = 0
    text_crc: int = 0
    line_crcs: int = 0

    def add(self, line: bytes) -> None:
        """The next line, without its newline."""
        self.lines += 1
        self.text_crc = zlib.crc32(b"\n", zlib.crc32(line, self.text_crc))


@dataclass(frozen=True)
class TextFile:
    """A file and the key of its lines."""

    module: str
    path: Path

    def lines(self) -> list[bytes]:
        """Its lines, without newlines, whatever bytes they are."""
        lines = self.path.read_bytes().split(b"\n")
        # The text behind the last newline is a line only if there is any.
        return lines if lines[-1] else lines[:-1]


def tally_of(lines: Sequence[bytes]) -> Tally:
    """The tally of a whole file."""
    text = b"\n".join(lines) + b"\n" if lines else b""
    return Tally(len(lines), zlib.crc32(text), sum(map(zlib.crc32, lines)))


def standard_library(limit: int | None = None) -> list[TextFile]:
    """The source files of this Python's standard library, keyed by dotted module name.

    `limit` takes the first so many.
    """
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(
        path
        for path in root.rglob("*.py")
        if not _NOT_THE_STANDARD_LIBRARY.intersection(path.relative_to(root).parts)
    )
    return [TextFile(_module(path.relative_to(root)), path) for path in paths[:limit]]


def _module(path: Path) -> str:
    parts = list(path.with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def own_files(paths: Sequence[Path]) -> list[TextFile]:
    """The user's files, each keyed by its path as given.

    A path that is given twice counts once.
    """
    return [TextFile(str(path), path) for path in dict.fromkeys(paths)]


def batches(
    files: Sequence[TextFile], lines_per_batch: int
) -> Iterator[tuple[list[str], list[bytes], dict[str, Tally]]]:
    """Yield keys, lines and tallies of some lines at a time.

    The lines are in the files' order; the tallies are those of the files that end in them.
    """
    keys: list[str] = []
    values: list[bytes] = []
    tallies: dict[str, Tally] = {}
    for file in files:
        lines = file.lines()
        if lines:
            tallies[file.module] = tally_of(lines)
        keys += [file.module] * len(lines)
        values += lines
        while len(values) >= lines_per_batch:
            yield keys[:lines_per_batch], values[:lines_per_batch], tallies
            keys, values, tallies = keys[lines_per_batch:], values[lines_per_batch:], {}
    if values or tallies:
        yield keys, values, tallies
