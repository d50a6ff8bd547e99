from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pulsar_ray.broker.serving.logs.line_limits import BURST_LINES, BURST_S, QUIET_S, LineLimits, audit, event


class Time:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Kept(logging.Handler):
    """Keeps what the limits let through."""

    def __init__(self, clock: Time) -> None:
        super().__init__()
        self.addFilter(LineLimits(clock))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def kept(clock: Time) -> Kept:
    return Kept(clock)


@pytest.fixture
def logger(kept: Kept) -> Iterator[logging.Logger]:
    found = logging.getLogger("pulsar_ray.test_line_limits")
    found.addHandler(kept)
    found.setLevel(logging.INFO)
    found.propagate = False
    yield found
    found.removeHandler(kept)


def test_a_line_comes_again_after_a_while_with_the_number_of_repeats(
    clock: Time, kept: Kept, logger: logging.Logger
) -> None:
    logger.warning("node %s", "a")
    for _ in range(100):
        clock.now += 5
        logger.warning("node %s", "a")
    assert kept.lines == ["node a"]
    clock.now += QUIET_S - 500
    logger.warning("node %s", "a")
    logger.warning("node %s", "a")
    assert kept.lines == ["node a", f"node a (and 100 times in the {QUIET_S:.0f} s before)"]


def test_other_lines_are_written_meanwhile(kept: Kept, logger: logging.Logger) -> None:
    logger.warning("node %s", "a")
    logger.warning("node %s", "b")
    logger.error("node %s", "a")
    logger.warning("node %s", "a")
    assert kept.lines == ["node a", "node b", "node a"]


def test_two_events_are_two_lines(kept: Kept, logger: logging.Logger) -> None:
    for _ in range(3):
        event(logger, "made %s", "a")
    assert kept.lines == ["made a"] * 3


def test_a_kind_of_line_does_not_come_by_thousands(clock: Time, kept: Kept, logger: logging.Logger) -> None:
    for number in range(10_000):
        event(logger, "topic %d has gone to sleep", number)
    logger.info("another kind")
    assert len(kept.lines) == BURST_LINES + 1
    assert kept.lines[-1] == "another kind"
    clock.now += BURST_S
    event(logger, "topic %d has gone to sleep", 10_000)
    left_out = 10_000 - BURST_LINES
    assert kept.lines[-1] == f"topic 10000 has gone to sleep (and {left_out} like it in the 60 s before)"
    event(logger, "topic %d has gone to sleep", 10_001)
    assert kept.lines[-1] == "topic 10001 has gone to sleep"


def test_few_lines_are_remembered(clock: Time, kept: Kept, logger: logging.Logger) -> None:
    for number in range(10_000):
        clock.now += 2
        logger.warning("message %s", number)
    assert len(kept.lines) == 10_000
    (limits,) = kept.filters
    assert isinstance(limits, LineLimits)
    assert len(limits._lines) < 1000
    assert len(limits._bursts) < 1000


def test_the_audit_log_leaves_no_line_out(kept: Kept) -> None:
    logger = logging.getLogger("pulsar_ray.audit")
    logger.addHandler(kept)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        for _ in range(3 * BURST_LINES):
            audit("%r at %s", "shop", "127.0.0.1")
    finally:
        logger.setLevel(level)
        logger.removeHandler(kept)
    assert kept.lines == ["'shop' at 127.0.0.1"] * (3 * BURST_LINES)
