"""Numbers that no command can reckon with are wrong usage."""

from __future__ import annotations

import pytest

from pulsar_ray.cli.target import Target
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize(
    "command",
    [
        ("health", "--timeout-seconds"),
        ("top", "--once", "--interval"),
        ("standalone", "--idle-seconds"),
        ("topics", "expire-messages", "t", "-s", "s", "--expire-time"),
    ],
    ids=" ".join,
)
def test_it_is_said_and_nothing_is_done(run: Run, command: tuple[str, ...], number: str) -> None:
    done = run(Target(), *command, number)
    assert done.exit_code == 2
    assert command[-1] in done.stderr
    assert done.stdout == ""
