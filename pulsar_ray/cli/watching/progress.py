"""How far a command has got, on standard error while that is a terminal.

Nothing is shown of what is done within a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.cli.console import err

SHOWN_AFTER_S = 1.0


class Unit(Enum):
    """The things that a command counts."""

    NOTHING = "nothing"
    """The command waits for others: only the time is shown."""
    BYTES = "bytes"
    ITEMS = "items"
    """Topics, messages or files."""


class ShownProgress:
    """A thread of its own draws a line, from a second after the beginning.

    Every method does nothing where standard error is no terminal.
    """

    def __init__(self, doing: str, total: int | None, unit: Unit) -> None:
        self._lock = threading.Lock()
        self._rich: RichProgress | None = None
        self._is_over = False
        console = err()
        if not console.is_terminal or console.is_dumb_terminal:
            return
        # Results go to standard output as ever: rich would have them written to this console instead.
        self._rich = RichProgress(
            *_columns(unit, has_total=total is not None),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._rich.add_task(one_line(doing), total=total)
        self._timer = threading.Timer(SHOWN_AFTER_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    @property
    def is_on(self) -> bool:
        """Whether anything of it can be seen."""
        return self._rich is not None

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        if self._rich is not None:
            self._rich.advance(self._task, count)

    def reached(self, count: int, doing: str | None = None) -> None:
        """So much is done by now; `doing` says what of."""
        if self._rich is not None:
            self._rich.update(self._task, completed=count, description=doing and one_line(doing))

    def has_total(self, total: int) -> None:
        """So much is to be done, as is known by now."""
        if self._rich is not None:
            self._rich.update(self._task, total=total)

    def between(self, write: Callable[[], None]) -> None:
        """Call `write`, which prints lines, while the line of progress is not there."""
        if self._rich is None:
            write()
            return
        with self._lock:
            is_shown = self._rich.live.is_started
            if is_shown:
                self._rich.stop()
            write()
            if is_shown:
                self._rich.start()

    def end(self) -> None:
        """Take the line away; may be repeated."""
        if self._rich is None:
            return
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            self._rich.stop()

    def _show(self) -> None:
        with self._lock:
            if not self._is_over and self._rich is not None:
                self._rich.start()


def _columns(unit: Unit, *, has_total: bool) -> list[ProgressColumn]:
    # The spinner is plain ASCII: not every terminal at the end of an ssh has more.
    columns: list[ProgressColumn] = [SpinnerColumn("line"), TextColumn("{task.description}", markup=False)]
    if has_total:
        columns.append(BarColumn())
    if unit is Unit.BYTES:
        columns.append(DownloadColumn())
    elif unit is Unit.ITEMS:
        columns.append(MofNCompleteColumn() if has_total else TextColumn("{task.completed:,.0f}"))
    columns.append(TimeRemainingColumn() if has_total else TimeElapsedColumn())
    return columns


@contextmanager
def progress(doing: str, total: int | None = None, unit: Unit = Unit.NOTHING) -> Iterator[ShownProgress]:
    """Show what is done until the end of the block.

    Without a `total` the time that has passed is shown, with one the time that is left.
    """
    shown = ShownProgress(doing, total, unit)
    try:
        yield shown
    finally:
        shown.end()
