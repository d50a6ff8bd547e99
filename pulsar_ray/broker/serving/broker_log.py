"""The log of broker processes: time, level and logger, and no line over and over."""

from __future__ import annotations

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable

LOGGER = "pulsar_ray"
QUIET_S = 600.0
"""A line that was written is not written again for so long."""
_KNOWN_LINES = 256
_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s [%(process)d]: %(message)s"


def begin_broker_log() -> None:
    """Log to this process's standard error, which Ray keeps in a file of the actor.

    May be called again.
    """
    logger = logging.getLogger(LOGGER)
    if any(isinstance(handler, BrokerLog) for handler in logger.handlers):
        return
    logger.addHandler(BrokerLog())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    # Ray's workers, and hooks of programs in them, may have handlers of their own.
    logger.propagate = False


class BrokerLog(logging.Handler):
    """Writes to the standard error of the moment, through a `RepeatFilter`."""

    def __init__(self) -> None:
        super().__init__()
        formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)
        self.addFilter(RepeatFilter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; what cannot be written is lost, as with any handler."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a full disk, or a closed stream, must not fail who logs
            self.handleError(record)


class RepeatFilter(logging.Filter):
    """Lets a line through once, and then at most every ten minutes with a count."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._lines: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; one that comes after repeats counts them."""
        text = record.getMessage()
        line = (record.name, record.levelno, text)
        now = self._monotonic()
        written_at, repeats = self._lines.get(line, (-QUIET_S, 0))
        if now - written_at < QUIET_S:
            self._lines[line] = (written_at, repeats + 1)
            return False
        self._lines[line] = (now, 0)
        self._lines.move_to_end(line)
        if len(self._lines) > _KNOWN_LINES:
            self._lines.popitem(last=False)
        if repeats:
            record.msg = f"{text} (and {repeats} times in the {now - written_at:.0f} s before)"
            record.args = ()
        return True
