"""Makes one sorted run of several, a part at a time.

In memory is a chunk of each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsar_ray.managed_ledger.delayed.delayed_rows import RowKey, count_up_to, key_at, sorted_rows
from pulsar_ray.managed_ledger.delayed.sorted_run import CHUNK_ROWS, RunWriter, SortedRun
from pulsar_ray.model.position import Position

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP_ROWS = 32 * CHUNK_ROWS
_ANY_TIME = (1 << 62) - 1


class RunMerge:
    """Reads runs by readers of its own, so that handing over goes on meanwhile.

    Rows at or below the key `behind`, or the position `mark_delete`, are left out.
    """

    def __init__(
        self,
        directory: Path,
        runs: Sequence[SortedRun],
        behind: RowKey,
        target: Path,
        mark_delete: Position,
    ) -> None:
        self.runs = [SortedRun(directory, run.info) for run in runs]
        self.behind = behind
        self.mark_delete = mark_delete
        self._target = target
        self._writer = RunWriter(target)
        for run in self.runs:
            run.go_behind(behind)
        self._portions = self._merged()

    def step(self) -> bool:
        """Merge a part; True once all is merged and durable, as `info` says."""
        written = 0
        for rows in self._portions:
            kept = rows[self._is_kept(rows)]
            self._writer.write(kept)
            written += len(rows)
            if written >= _STEP_ROWS:
                return False
        self.info = self._writer.finish()
        for run in self.runs:
            run.close()
        return True

    def _is_kept(self, rows: NDArray[Any]) -> Any:
        ledger_id, entry_id = self.mark_delete
        later = rows["ledger_id"] > ledger_id
        # A block that reaches beyond the position stays whole: its first entry alone is known.
        last = rows["first_entry_id"] + (rows["messages"] & 0x7FFF).astype("i8") - 1
        return later | ((rows["ledger_id"] == ledger_id) & (last > entry_id))

    def _merged(self) -> Iterator[NDArray[Any]]:
        runs = [run for run in self.runs if run.rows_left]
        while runs:
            parts = [run.peek(_ANY_TIME, CHUNK_ROWS) for run in runs]
            # Nothing behind what was read of a run is below that: so far all are complete.
            bound = min(key_at(part, len(part) - 1) for part in parts)
            counts = [count_up_to(part, bound) for part in parts]
            taken = [part[:count] for part, count in zip(parts, counts, strict=True) if count]
            yield sorted_rows(taken)
            for run, count in zip(runs, counts, strict=True):
                run.take(count)
            runs = [run for run in runs if run.rows_left]

    def close(self) -> None:
        """Give it up, and remove what was written."""
        self._writer.close()
        for run in self.runs:
            run.close()
        with contextlib.suppress(OSError):
            self._target.unlink()
