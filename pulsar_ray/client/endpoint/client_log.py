"""Sends what the package logs to the logger that a client was given (`Client(logger=...)`)."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, TextIO

from pulsar_ray.client.options.loggers import ConsoleLogger, FileLogger
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.enums import LoggerLevel

PACKAGE_LOG = logging.getLogger("pulsar_ray")

_LEVELS = {
    LoggerLevel.Debug: logging.DEBUG,
    LoggerLevel.Info: logging.INFO,
    LoggerLevel.Warn: logging.WARNING,
    LoggerLevel.Error: logging.ERROR,
}
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-5s [%(threadName)s] %(name)s: %(message)s"


class ClientLog:
    """Receives the package's lines of this process from its making until `close`.

    As in the official client, what is logged is the process's: with several clients each logger gets the
    lines of all, which name topic and subscription. While any of them is open, lines go to the given
    loggers alone, and no longer up to those that the program configured. Thread-safe.

    Raises InvalidConfiguration for a log file that cannot be opened.
    """

    def __init__(self, destination: logging.Logger | ConsoleLogger | FileLogger | None) -> None:
        self._handler = _handler(destination)
        if self._handler is not None:
            _LOGS.add(self._handler)

    def close(self) -> None:
        """Send it no more lines. A second call does nothing."""
        handler, self._handler = self._handler, None
        if handler is not None:
            _LOGS.remove(handler)
            handler.close()


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 does not know what it holds


class _Forwarding(logging.Handler):
    """Hands lines to a logger of the user's, whose filters and handlers decide."""

    def __init__(self, destination: logging.Logger) -> None:
        super().__init__(destination.getEffectiveLevel())
        self._destination = destination

    def handle(self, record: logging.LogRecord) -> bool:
        """Hand a line on without taking this handler's lock: the user's handlers run in here."""
        if self._destination.isEnabledFor(record.levelno):
            self._destination.handle(record)
        return True


class _Console(_StreamHandler):
    """Prints lines where the program's standard output goes just now, which tests and notebooks change."""

    def __init__(self, level: int) -> None:
        super().__init__(sys.stdout)
        self.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


class _OpenLogs:
    """Keeps the handlers of all open clients, and how the package's logger was before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: list[logging.Handler] = []
        self._level_before = logging.NOTSET
        self._propagated_before = True

    def add(self, handler: logging.Handler) -> None:
        with self._lock:
            if not self._handlers:
                self._level_before = PACKAGE_LOG.level
                self._propagated_before = PACKAGE_LOG.propagate
                PACKAGE_LOG.propagate = False
            self._handlers.append(handler)
            PACKAGE_LOG.addHandler(handler)
            PACKAGE_LOG.setLevel(min(each.level for each in self._handlers))

    def remove(self, handler: logging.Handler) -> None:
        with self._lock:
            self._handlers.remove(handler)
            PACKAGE_LOG.removeHandler(handler)
            if self._handlers:
                PACKAGE_LOG.setLevel(min(each.level for each in self._handlers))
            else:
                PACKAGE_LOG.setLevel(self._level_before)
                PACKAGE_LOG.propagate = self._propagated_before


_LOGS = _OpenLogs()


def _handler(destination: logging.Logger | ConsoleLogger | FileLogger | None) -> logging.Handler | None:
    if destination is None:
        return None
    if isinstance(destination, logging.Logger):
        # The package's own loggers get its lines as it is; forwarding to them would not end.
        is_ours = destination is PACKAGE_LOG or destination.name.startswith(f"{PACKAGE_LOG.name}.")
        return None if is_ours else _Forwarding(destination)
    level = _LEVELS[destination.log_level]
    handler: logging.Handler
    if isinstance(destination, ConsoleLogger):
        handler = _Console(level)
    else:
        try:
            handler = logging.FileHandler(destination.log_file)
        except OSError as error:
            raise InvalidConfiguration(
                f"the log file {destination.log_file!r} of logger= cannot be opened: {error.strerror}; "
                "give FileLogger a file that this program may write"
            ) from None
        handler.setLevel(level)
    handler.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    return handler
