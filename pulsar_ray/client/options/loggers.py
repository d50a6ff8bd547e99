"""The official logger classes. Accepted by `Client(logger=...)` beside `logging.Logger`."""

from __future__ import annotations

from pulsar_ray.client.options.checks import check_enum, check_type
from pulsar_ray.model.enums import LoggerLevel


class ConsoleLogger:
    """Log to the console from this level on."""

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        check_enum("log_level", log_level, LoggerLevel)
        self.log_level = log_level


class FileLogger:
    """Log to a file from this level on."""

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        check_enum("log_level", log_level, LoggerLevel)
        check_type("log_file", log_file, str, "a str")
        self.log_level = log_level
        self.log_file = log_file
