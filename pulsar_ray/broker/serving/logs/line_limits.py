"""Keeps a log short: no line over and over, no kind by thousands.

A kind is a line's text before names and numbers are put in. A condition that lasts is written once and then
every ten minutes with a count. An event (see `event`) is written each time, since two of them are two, until
there are too many of one kind.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from pulsar_ray.broker.serving.logs.log_lines import about

QUIET_S = 600.0
"""A line that is no event is not written again for so long."""
BURST_LINES = 60
"""So many lines of a kind are written in `BURST_S`.

The next one after that says how many were not.
"""
BURST_S = 60.0
_KNOWN_LINES = 256

Key = tuple[str, int, str]


def event(
    logger: logging.Logger,
    text: str,
    *args: object,
    level: int = logging.INFO,
    topic: str = "",
    subscription: str = "",
) -> None:
    """Log that something has happened, once, which an operator may want to know."""
    named = about(topic=topic, subscription=subscription)
    logger.log(level, text, *args, extra={"is_event": True, **named})


AUDIT = "pulsar_ray.audit"
"""The logger of the audit log."""


def audit(text: str, *args: object) -> None:
    """Log who has asked for what, or what somebody may do.

    Each line is written, however many there are.
    """
    logging.getLogger(AUDIT).info(text, *args, extra={"is_event": True, **about()})


class LineLimits(logging.Filter):
    """Lets records through; one that comes after others were left out says how many."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lines: OrderedDict[Key, tuple[float, int]] = OrderedDict()
        """When it was written, and how often it was left out since."""
        self._bursts: OrderedDict[Key, tuple[float, int]] = OrderedDict()
        """When a kind's minute began, and how many there were in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if record.name == AUDIT:
            return True
        now = self._monotonic()
        text = record.getMessage()
        notes = []
        if not getattr(record, "is_event", False):
            line = (record.name, record.levelno, text)
            written_at, repeats = self._lines.get(line, (-QUIET_S, 0))
            if now - written_at < QUIET_S:
                self._lines[line] = (written_at, repeats + 1)
                return False
            _keep(self._lines, line, (now, 0))
            if repeats:
                notes.append(f"{repeats} times in the {now - written_at:.0f} s before")
        kind = (record.name, record.levelno, str(record.msg))
        began_at, count = self._bursts.get(kind, (now, 0))
        if now - began_at >= BURST_S:
            if count > BURST_LINES:
                notes.append(f"{count - BURST_LINES} like it in the {now - began_at:.0f} s before")
            began_at, count = now, 0
        _keep(self._bursts, kind, (began_at, count + 1))
        if count >= BURST_LINES:
            return False
        if notes:
            record.msg, record.args = f"{text} (and {', and '.join(notes)})", ()
        return True


def _keep(known: OrderedDict[Key, tuple[float, int]], key: Key, value: tuple[float, int]) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _KNOWN_LINES:
        known.popitem(last=False)
