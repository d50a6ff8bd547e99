from __future__ import annotations

import logging
import re
import subprocess
import sys

from pulsar_ray.broker.serving.broker_log import QUIET_S, RepeatFilter

PROGRAM = """
import logging
from pulsar_ray.broker.serving.broker_log import begin_broker_log

begin_broker_log()
begin_broker_log()
logger = logging.getLogger("pulsar_ray.actors.stores")
for _ in range(50):
    logger.warning("no store on node %s: %s", "0a1b", "it is on NFS")
logger.info("found")
logger.debug("unseen")
try:
    raise ValueError("the cause")
except ValueError:
    logger.exception("looking for stores failed")
"""

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\w+) pulsar_ray\.actors\.stores \[\d+\]: (.*)"


def test_each_line_has_time_level_and_logger_and_is_written_once() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = [found.groups() for text in ended.stderr.splitlines() if (found := re.fullmatch(LINE, text))]
    assert lines == [
        ("WARNING", "no store on node 0a1b: it is on NFS"),
        ("INFO", "found"),
        ("ERROR", "looking for stores failed"),
    ]
    assert "ValueError: the cause" in ended.stderr
    assert ended.stdout == ""


class Time:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(text: str, *arguments: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("pulsar_ray.x", level, "x.py", 1, text, arguments, None)


def test_a_line_comes_again_after_a_while_with_the_number_of_repeats() -> None:
    clock = Time()
    repeats = RepeatFilter(clock)
    assert repeats.filter(record("node %s", "a"))
    for _ in range(100):
        clock.now += 5
        assert not repeats.filter(record("node %s", "a"))
    clock.now += QUIET_S - 500
    again = record("node %s", "a")
    assert repeats.filter(again)
    assert again.getMessage() == f"node a (and 100 times in the {QUIET_S:.0f} s before)"
    assert not repeats.filter(record("node %s", "a"))


def test_other_lines_are_written_meanwhile() -> None:
    repeats = RepeatFilter(Time())
    assert repeats.filter(record("node %s", "a"))
    assert repeats.filter(record("node %s", "b"))
    assert repeats.filter(record("node %s", "a", level=logging.ERROR))


def test_few_lines_are_remembered() -> None:
    repeats = RepeatFilter(Time())
    for number in range(10_000):
        assert repeats.filter(record("message %s", number))
    assert not repeats.filter(record("message %s", 9_999))
    assert repeats.filter(record("message %s", 0))
    assert len(repeats._lines) < 1000
