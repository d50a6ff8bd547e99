"""A counted sink of a stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import DataFrame


class Sink:
    """One file per batch id, placed whole: a rerun replaces it, and must have the same rows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self.reruns = 0
        self.fails_at: int | None = None

    def take(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted(int(bytes(row.value)) for row in frame.select("value").collect())
        path, text = self._directory / str(batch_id), " ".join(map(str, rows))
        if path.exists():
            assert path.read_text() == text, f"batch {batch_id} has other rows in its rerun"
            self.reruns += 1
        scratch = path.with_name(f"scratch-{batch_id}")  # whoever counts passes it over
        scratch.write_text(text)
        scratch.rename(path)
        if batch_id == self.fails_at:
            self.fails_at = None
            raise ValueError("no more today")

    def counts(self) -> list[int]:
        paths = sorted(self._directory.glob("[0-9]*"), key=lambda path: int(path.name))
        return [len(path.read_text().split()) for path in paths]

    def numbers(self) -> Counter[int]:
        return Counter(
            int(text) for path in self._directory.glob("[0-9]*") for text in path.read_text().split()
        )
