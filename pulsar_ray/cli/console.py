"""Where commands write: results to standard output, everything else to standard error."""

from __future__ import annotations

from typing import NoReturn

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


def say(text: str) -> None:
    """A remark that must not get between results."""
    click.echo(text, err=True)


def warn(text: str) -> None:
    """A warning."""
    click.secho(f"warning: {text}", fg="yellow", err=True)


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
