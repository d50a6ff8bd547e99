"""Begins the log of a broker process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pulsar_ray.broker.serving.logs.line_limits import LineLimits
from pulsar_ray.broker.serving.logs.log_lines import TEXT, LineFormatter, LogContext
from pulsar_ray.broker.serving.logs.node_log import NodeLog
from pulsar_ray.errors import UntrustedPath

LOGGER = "pulsar_ray"


def begin_broker_log(
    context: LogContext, *, form: str = TEXT, level: str = "INFO", directory: Path | None = None
) -> None:
    """Log to the node's file in `directory`, warnings to standard error as well.

    Without a directory all goes to standard error.

    Ray keeps the standard error in a file of the actor, and prints it to programs that show worker logs,
    which are to see what needs an eye and nothing else. May be called again: the last context holds.
    """
    logger = logging.getLogger(LOGGER)
    for handler in [each for each in logger.handlers if isinstance(each, BrokerLog)]:
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(BrokerLog(context, form, None if directory is None else NodeLog(directory)))
    logger.setLevel(level)
    # Ray's workers, and hooks of programs in them, may have handlers of their own.
    logger.propagate = False


class BrokerLog(logging.Handler):
    """Writes to the node's file and to the standard error of the moment."""

    def __init__(self, context: LogContext, form: str, node_log: NodeLog | None) -> None:
        super().__init__()
        self.setFormatter(LineFormatter(context, form))
        self.addFilter(LineLimits())
        self._node_log = node_log
        self._has_complained = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; what cannot be written is lost, as with any handler."""
        try:
            line = self.format(record)
            if not self._is_in_file(line) or record.levelno >= logging.WARNING:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a full disk, or a closed stream, must not fail who logs
            self.handleError(record)

    def _is_in_file(self, line: str) -> bool:
        if self._node_log is None:
            return False
        try:
            self._node_log.write(line)
        except OSError:
            return False
        except UntrustedPath as error:
            if not self._has_complained:
                self._has_complained = True
                sys.stderr.write(f"{error}; the broker's log goes here instead\n")
            return False
        return True

    def close(self) -> None:
        """Give the file up."""
        if self._node_log is not None:
            self._node_log.close()
        super().close()
