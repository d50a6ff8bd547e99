"""The index of a subscription's delayed rows that are not delivered yet.

The newest are in memory, the rest in sorted runs. The index is made of the log, and of nothing else:
acknowledgments and seeks do not change it. It has every delayed row of the entries behind `covers_from` up to
`through`, except those at or below `dropped`, which were handed over, and those that a merge found
acknowledged. Without it the log is read again from the mark-delete position.

Handing over is reading: rows stay until whoever got them says so with the next request. Durable is what the
runs hold; `durable_through` says how far into the log they go. After a crash the log is read from there.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsar_ray.errors import CorruptData
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.owner_lock import HeldLock, take_lock
from pulsar_ray.ledger.record_log import RecordLog, read_log
from pulsar_ray.managed_ledger.delayed.delayed_rows import (
    NO_KEY,
    RowKey,
    count_up_to,
    empty_rows,
    entries_in,
    messages_of,
    sorted_rows,
)
from pulsar_ray.managed_ledger.delayed.sorted_run import RunInfo, SortedRun, write_run
from pulsar_ray.model.message_id import Position
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pulsar_ray.managed_ledger.delayed.delayed_rows import key_at
from pulsar_ray.managed_ledger.delayed.sorted_run import CHUNK_ROWS, RunWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOG_NAME = "index"
_STATE = 1
MOST_RUNS = 12
MERGED_AT_ONCE = 8
NEVER = 1 << 62
_STEP_ROWS = 32 * CHUNK_ROWS
_ANY_TIME = (1 << 62) - 1


class DelayedIndex:
    """One owner at a time; one thread uses it."""

    def __init__(self, owner: DirectoryOwner, covers_from: Position, through: Position) -> None:
        self._owner = owner
        self._log = RecordLog(owner, LOG_NAME)
        self.covers_from = covers_from
        self.through = through
        """How far into the log it has every delayed row."""
        self.durable_through = through
        self.dropped = NO_KEY
        self._taken = NO_KEY
        self._floor_ms = NO_KEY.deliver_at
        self._runs: list[SortedRun] = []
        self._sorted = empty_rows()
        self._next = 0
        self._fresh: list[NDArray[Any]] = []
        self._fresh_rows = self._fresh_entries = 0
        self._fresh_first = NEVER
        self._numbers = 0
        self._merge: RunMerge | None = None
        self.problem = ""
        """The reason why it was begun anew; "" if it was not."""

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, directory: Path, mark_delete: Position, *, acquire_lock: Callable[[Path], HeldLock] = take_lock
    ) -> DelayedIndex:
        """Take the index of a directory over, or begin one; blocks.

        One that is damaged is begun anew behind `mark_delete`, and says so in `problem`.
        """
        try:
            owner = DirectoryOwner.open(directory, create=True, acquire_lock=acquire_lock)
        except CorruptData:
            # Its epoch cannot be read. All of it can be made anew.
            shutil.rmtree(directory)
            owner = DirectoryOwner.open(directory, create=True, acquire_lock=acquire_lock)
        index = cls(owner, mark_delete, mark_delete)
        try:
            try:
                index._load()
            except (CorruptData, KeyError, TypeError, ValueError) as error:
                index.problem = f"the index of delayed messages is read from the log again: {error}"
                index._clear(mark_delete)
            index._log.rewrite([index._state()])
            index._remove_strangers()
        except BaseException:
            index._log.close()
            owner.close()
            raise
        return index

    def _load(self) -> None:
        content = read_log(self._owner.path, LOG_NAME)
        if content is None:
            return
        kind, state = content.records[-1]
        if kind != _STATE:
            raise CorruptData(str(content.path), 0, f"a record has type {kind}")
        self.covers_from = Position(*state["covers_from"])
        self.through = self.durable_through = Position(*state["through"])
        self.dropped = self._taken = RowKey(*state["dropped"])
        for name, rows, entries, last in state["runs"]:
            run = SortedRun(self._owner.path, RunInfo(name, rows, entries, RowKey(*last)))
            self._runs.append(run)
            run.go_behind(self.dropped)

    def _state(self) -> tuple[int, dict[str, Any]]:
        return _STATE, {
            "covers_from": list(self.covers_from),
            "through": list(self.durable_through),
            "dropped": list(self.dropped),
            "runs": [[*run.info[:3], list(run.info.last)] for run in self._runs],
        }

    def _remove_strangers(self) -> None:
        """Remove runs that are not recorded: of a crash in between, or merged."""
        known = {run.info.name for run in self._runs}
        for path in self._owner.path.glob("run-*"):
            if path.name not in known:
                with contextlib.suppress(OSError):
                    path.unlink()

    # --- the log's rows ---------------------------------------------------------------------------

    def add(self, rows: NDArray[Any], through: Position) -> None:
        """Take in the delayed rows of the next entries, up to `through`.

        Rows that are due at or before the floor are left out: the dispatcher finds them in the log. One that
        was due before what was handed over last is handed over next.
        """
        self.through = through
        if not len(rows):
            return
        first = int(rows["deliver_at"].min())
        if first <= self._floor_ms:
            self.dropped = max(self.dropped, RowKey(self._floor_ms))
            rows = rows[rows["deliver_at"] > self._floor_ms]
            if not len(rows):
                return
            first = int(rows["deliver_at"].min())
        if first <= self._taken.deliver_at:
            # Only rows behind the taken key are handed over.
            first = self._taken.deliver_at + 1
            rows = rows.copy()
            np.maximum(rows["deliver_at"], first, out=rows["deliver_at"])
        self._fresh.append(rows)
        self._fresh_rows += len(rows)
        self._fresh_entries += entries_in(rows)
        self._fresh_first = min(self._fresh_first, first)

    @property
    def rows_in_memory(self) -> int:
        """How many rows are in memory alone."""
        return len(self._sorted) - self._next + self._fresh_rows

    def _sort(self) -> None:
        if self._fresh:
            self._forget_taken()
            self._sorted = sorted_rows([self._sorted, *self._fresh])
            self._forget_fresh()

    def _forget_taken(self) -> None:
        if self._next:
            self.dropped = max(self.dropped, self._taken)
            self._sorted = self._sorted[self._next :]
            self._next = 0

    def _forget_fresh(self) -> None:
        self._fresh, self._fresh_first = [], NEVER
        self._fresh_rows = self._fresh_entries = 0

    def flush(self) -> None:
        """Make all up to `through` durable: rows in memory alone become a run."""
        self._sort()
        self._forget_taken()
        if len(self._sorted):
            info = write_run(self._new_path(), [self._sorted])
            self._runs.append(SortedRun(self._owner.path, info))
            self._sorted = empty_rows()
        self.durable_through = self.through
        self._record()

    def _new_path(self) -> Path:
        self._numbers += 1
        return self._owner.path / f"run-{self._owner.epoch}-{self._numbers}"

    def _record(self) -> None:
        """Make the state durable."""
        self._log.rewrite([self._state()])

    def start_over(self, mark_delete: Position) -> None:
        """Forget everything: the log is read again from behind a position."""
        self._clear(mark_delete)
        self.dropped = max(self.dropped, self._taken)
        self._record()
        self._remove_strangers()

    def make_anew(self, mark_delete: Position) -> None:
        """Forget everything, also what was taken: the log is read again from behind a position."""
        self._clear(mark_delete)
        self.dropped = self._taken = NO_KEY
        self._record()
        self._remove_strangers()

    def _clear(self, mark_delete: Position) -> None:
        self._drop_merge()
        for run in self._runs:
            run.close()
        self._runs = []
        self._sorted, self._next = empty_rows(), 0
        self._forget_fresh()
        self.covers_from = self.through = self.durable_through = mark_delete

    def skip_to(self, mark_delete: Position) -> None:
        """Go on behind a position up to which everything is acknowledged, beyond what was read."""
        if self._runs or self.rows_in_memory:
            self.start_over(mark_delete)
        else:
            self.covers_from = self.through = self.durable_through = mark_delete

    @property
    def run_count(self) -> int:
        """How many runs are on disk."""
        return len(self._runs)

    # --- handing over -----------------------------------------------------------------------------

    def set_taken(self, taken: RowKey, floor_ms: int) -> None:
        """Note that the dispatcher has everything up to a key.

        Runs without more than that go. `floor_ms`: what is due by then it has found in the log, and will.
        """
        self._floor_ms = floor_ms
        if taken != self._taken:
            if taken < self.dropped:
                self._record()  # the dispatcher has to know when it begins again
            if self._fresh_first <= taken.deliver_at:
                self._sort()
            self._taken = taken
            self._next = count_up_to(self._sorted, taken)
            for run in self._runs:
                run.go_behind(taken)
        finished = [run for run in self._runs if not run.rows_left]
        if finished and self._merge is None:
            self.dropped = max(self.dropped, taken)
            self._runs = [run for run in self._runs if run.rows_left]
            self._record()
            self._remove(finished)

    def _remove(self, runs: list[SortedRun]) -> None:
        for run in runs:
            run.close()
            with contextlib.suppress(OSError):
                run.path.unlink()

    def due(self, until_ms: int, messages: int) -> NDArray[Any]:
        """Return rows above the taken key that are due until then, in order.

        They are so many messages; the last of them may go beyond that number. They stay until they are taken.
        """
        if messages <= 0:
            return empty_rows()
        if self._fresh_first <= until_ms:
            self._sort()
        waiting = self._sorted[self._next : self._next + messages]
        parts = [waiting[: int(np.searchsorted(waiting["deliver_at"], until_ms, "right"))]]
        parts += [run.peek(until_ms, messages) for run in self._runs]
        parts = [part for part in parts if len(part)]
        if not parts:
            return empty_rows()
        rows = sorted_rows(parts)[:messages]
        enough = int(np.searchsorted(np.cumsum(messages_of(rows)), messages, "left")) + 1
        return rows[:enough]

    def next_time(self) -> int | None:
        """When the first row above the taken key is due; None if there is none."""
        first = self._fresh_first
        if self._next < len(self._sorted):
            first = min(first, int(self._sorted["deliver_at"][self._next]))
        for run in self._runs:
            time = run.next_time()
            if time is not None:
                first = min(first, time)
        return None if first == NEVER else first

    @property
    def entries(self) -> int:
        """How many entries have not been taken, those acknowledged before included."""
        total = entries_in(self._sorted[self._next :]) + self._fresh_entries
        for run in self._runs:
            info = run.info
            # Of a run that was taken in part the share is an estimate.
            total += info.entries * run.rows_left // info.rows
        return total

    def entries_waiting(self, by_ms: int) -> int:
        """Count the entries whose time is later.

        The others were not taken for want of room.
        """
        waiting = self._sorted[self._next :]
        total = entries_in(waiting[int(np.searchsorted(waiting["deliver_at"], by_ms, "right")) :])
        if self._fresh_first > by_ms:
            total += self._fresh_entries
        else:
            total += sum(entries_in(rows[rows["deliver_at"] > by_ms]) for rows in self._fresh)
        for run in self._runs:
            info = run.info
            total += info.entries * (run.rows_left - run.rows_due(by_ms)) // info.rows
        return total

    # --- merging ----------------------------------------------------------------------------------

    def work(self, mark_delete: Position) -> bool:
        """Merge a part of too many runs; True if more is to do.

        Rows at or below `mark_delete` are left out.
        """
        if self._merge is None:
            if len(self._runs) <= MOST_RUNS:
                return False
            smallest = sorted(self._runs, key=lambda run: run.rows_left)[:MERGED_AT_ONCE]
            self._merge = RunMerge(self._owner.path, smallest, self._taken, self._new_path(), mark_delete)
        if not self._merge.step():
            return True
        merge, self._merge = self._merge, None
        self.dropped = max(self.dropped, merge.behind)
        self.covers_from = max(self.covers_from, merge.mark_delete)
        merged = {run.info.name for run in merge.runs}
        gone = [run for run in self._runs if run.info.name in merged]
        self._runs = [run for run in self._runs if run.info.name not in merged]
        if merge.info.rows:
            run = SortedRun(self._owner.path, merge.info)
            run.go_behind(self._taken)
            self._runs.append(run)
        self._record()
        self._remove(gone)
        return len(self._runs) > MOST_RUNS

    def _drop_merge(self) -> None:
        if self._merge is not None:
            self._merge.close()
            self._merge = None

    def close(self) -> None:
        """Give the directory up. Rows in memory alone are read again."""
        self._drop_merge()
        for run in self._runs:
            run.close()
        self._log.close()
        self._owner.close()


def verify_index(directory: Path) -> None:
    """Verify every checksum of an index, without owning it.

    Raises CorruptData, UnsupportedFormatVersion.
    """
    content = read_log(directory, LOG_NAME)
    if content is None:
        return
    try:
        for name, rows, entries, last in content.records[-1][1]["runs"]:
            run = SortedRun(directory, RunInfo(name, rows, entries, RowKey(*last)))
            try:
                run.verify()
            finally:
                run.close()
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CorruptData(str(content.path), 0, f"not an index of delayed messages: {error}") from error


def dropped_key(directory: Path) -> RowKey:
    """The key up to which an index has forgotten rows, read without owning it.

    NO_KEY for a damaged one, which is read from the log again.
    """
    try:
        content = read_log(directory, LOG_NAME)
        return NO_KEY if content is None else RowKey(*content.records[-1][1]["dropped"])
    except (CorruptData, OSError, KeyError, TypeError, ValueError, IndexError):
        return NO_KEY


class RunMerge:
    """Makes one sorted run of several, a part at a time.

    A chunk of each is in memory. The runs are read by readers of its own, so that handing over goes on
    meanwhile. Rows at or below the key `behind`, or the position `mark_delete`, are left out.
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
