"""Numbers, durations and times on the command line."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

import click

from pulsar_ray.client.producer.message_fields import LAST_TIME_MS
from pulsar_ray.clock import written_time


class FiniteRange(click.FloatRange):
    """A number of a range, as `click.FloatRange`.

    `nan`, which is in every range for that, and `inf` are refused.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number; anything else is wrong usage."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


def duration(_: click.Context, __: click.Parameter, text: str | None) -> timedelta | None:
    """Read 500ms, 30s, 90m, 3h, 2d, 1w."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})(ms|[smhdw])", text)
    if match is None:
        raise click.BadParameter(f"{text!r}: give a number and ms, s, m, h, d or w, for instance 90m")
    return int(match[1]) * _UNITS[match[2]]


def time_ms(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Read a time as ms since 1970, or as in 2030-01-31T08:00:00+01:00.

    Without a zone it is local.
    """
    if text is None:
        return None
    try:
        ms = int(text) if text.isdecimal() else int(written_time(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r}: give a time as 2030-01-31T08:00:00, or ms since 1970") from None
    if ms > LAST_TIME_MS:
        raise click.BadParameter(f"{text!r} is beyond the year 9999: give ms since 1970")
    return ms
