"""Where commands write, and where Ctrl-C does no harm.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import errno
import logging
import signal
import sys
import unicodedata
from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape

from pulsar_ray.broker.serving.logs.log_lines import one_line

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def out() -> Console:
    """Results."""
    return Console(highlight=False, soft_wrap=True)


def err() -> Console:
    """Progress, warnings and remarks."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def write_out(content: bytes) -> None:
    """Write bytes to standard output, all of them or with an error.

    They have left this process when it returns. Raises OSError, as BrokenPipeError, if some could not be
    written.
    """
    output = sys.stdout.buffer
    left = memoryview(content)
    # With PYTHONUNBUFFERED this is the bare file: it may take a part, as of a pipe whose reader goes away
    # meanwhile, and says so by the count alone. Only the next write raises.
    while left:
        written: int | None = output.write(left)
        if written is None:
            raise BlockingIOError(errno.EAGAIN, "standard output does not block, and is full")
        left = left[written:]
    output.flush()


def write_messages(lines: bytes) -> None:
    """Write what messages hold, as it is or, to a terminal, with signs escaped.

    Escaped are those that would steer it; line ends and tabs stay. Raises as `write_out`.
    """
    write_out(_for_terminal(lines) if sys.stdout.isatty() else lines)


def _for_terminal(lines: bytes) -> bytes:
    text = lines.decode("utf-8", "backslashreplace")
    if not text.replace("\n", "").isprintable():
        text = "".join(sign if _is_harmless(sign) else repr(sign)[1:-1] for sign in text)
    return text.encode()


def _is_harmless(sign: str) -> bool:
    # Joiners are part of words and of pictures, and turn no text around.
    return sign.isprintable() or sign in "\n\t\u200c\u200d" or unicodedata.category(sign) == "Zs"


class _ReadableLines(logging.Formatter):
    """Has the lines of a remark without signs that steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(one_line, super().format(record).split("\n")))


def guard_remarks() -> None:
    """Have remarks of the library escaped as the command's own lines are.

    That is what it logs while nobody has configured any logging.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_ReadableLines())


def write_line(text: str) -> None:
    """Write one line of results; no name ends it or steers the terminal."""
    click.echo(one_line(text))


def say(text: str) -> None:
    """Write one line of remarks, which must not get between results."""
    click.echo(one_line(text), err=True)


def warn(text: str) -> None:
    """Write one line of warning."""
    click.secho(one_line(f"warning: {text}"), fg="yellow", err=True)


def interrupted(text: str) -> NoReturn:
    """End after Ctrl-C, saying what was achieved."""
    say(text)
    raise click.exceptions.Exit(INTERRUPTED)


def cell(text: str) -> str:
    """A name in a table; line ends, colours and markup in it can be read."""
    return escape(one_line(text))


def rate(count: float, seconds: float) -> str:
    """How many a second."""
    return f"{count / seconds:,.0f}/s" if seconds > 0 else "-/s"


def size(count: float) -> str:
    """Bytes, to read."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


class Interrupt:
    """While entered, Ctrl-C raises KeyboardInterrupt only in `check` or while `is_waiting`.

    So it cannot come between two steps that belong together, as printing and acknowledging. A second Ctrl-C
    raises wherever it comes.
    """

    def __init__(self) -> None:
        self.is_waiting = False
        self._asked = False
        self._before: Any = None

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_waiting or self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C came."""
        if self._asked:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
