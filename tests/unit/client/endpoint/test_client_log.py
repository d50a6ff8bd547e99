"""The logger that a client was given gets the package's lines, while the client is open."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.endpoint.client_log import PACKAGE_LOG, ClientLog
from pulsar_ray.client.options.loggers import ConsoleLogger, FileLogger
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.enums import LoggerLevel
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until

LINES = logging.getLogger("pulsar_ray.client.somewhere")


@pytest.fixture(autouse=True)
def _leaves_the_package_log_as_it_was() -> Iterator[None]:
    before = (PACKAGE_LOG.level, PACKAGE_LOG.propagate, list(PACKAGE_LOG.handlers))
    yield
    assert (PACKAGE_LOG.level, PACKAGE_LOG.propagate, list(PACKAGE_LOG.handlers)) == before


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def own_logger(level: int) -> tuple[logging.Logger, Kept]:
    own, kept = logging.Logger("mine", level), Kept()
    own.addHandler(kept)
    return own, kept


def test_a_logger_gets_what_its_level_lets_through_and_nothing_behind_the_end() -> None:
    own, kept = own_logger(logging.INFO)
    log = ClientLog(own)
    LINES.debug("too low")
    LINES.info("a line")
    log.close()
    log.close()
    LINES.error("behind the end")
    assert kept.messages == ["a line"]


def test_several_loggers_get_all_lines_each_from_its_level_on() -> None:
    loud, loud_kept = own_logger(logging.DEBUG)
    calm, calm_kept = own_logger(logging.ERROR)
    logs = [ClientLog(loud), ClientLog(calm)]
    LINES.debug("small")
    LINES.error("large")
    logs[0].close()
    LINES.error("to one")
    logs[1].close()
    assert loud_kept.messages == ["small", "large"]
    assert calm_kept.messages == ["large", "to one"]


def test_lines_go_to_the_given_logger_instead_of_the_programs(caplog: pytest.LogCaptureFixture) -> None:
    own, kept = own_logger(logging.WARNING)
    log = ClientLog(own)
    LINES.warning("once")
    log.close()
    assert kept.messages == ["once"]
    assert "once" not in caplog.text


def test_the_packages_own_logger_is_no_circle(caplog: pytest.LogCaptureFixture) -> None:
    log = ClientLog(LINES)
    LINES.warning("as before")
    log.close()
    assert caplog.text.count("as before") == 1


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (LoggerLevel.Debug, ["d", "i", "w", "e"]),
        (LoggerLevel.Info, ["i", "w", "e"]),
        (LoggerLevel.Warn, ["w", "e"]),
        (LoggerLevel.Error, ["e"]),
    ],
)
@pytest.mark.parametrize("kind", ["console", "file"])
def test_official_loggers_write_from_their_level_on(
    kind: str, level: LoggerLevel, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "log"
    log = ClientLog(ConsoleLogger(level) if kind == "console" else FileLogger(level, str(file)))
    LINES.debug("d")
    LINES.info("i")
    LINES.warning("w")
    LINES.error("e")
    log.close()
    written = capsys.readouterr().out if kind == "console" else file.read_text()
    assert [line.rpartition(": ")[2] for line in written.splitlines()] == expected
    assert all("pulsar_ray.client.somewhere" in line for line in written.splitlines())


def test_a_log_file_that_cannot_be_opened_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"'.*/nowhere/log'.*No such file"):
        Client(logger=FileLogger(LoggerLevel.Info, str(tmp_path / "nowhere" / "log")))


def test_a_client_sends_its_warnings_there_until_it_is_closed(tmp_path: Path) -> None:
    own, kept = own_logger(logging.WARNING)
    cluster = StubCluster(tmp_path / "data")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("in the callback")

    with Client._on(cluster, logger=own) as client:
        client.create_producer("topic").send_async(b"x", fail)
        wait_until(lambda: kept.messages, 20.0, "the line about the callback")
    cluster.close()
    assert kept.messages == ["a send callback raised"]
