"""`pulsar-ray logs` with files of the test's own."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from pulsar_ray.cli.target import Target
from pulsar_ray.cli.watching import logs
from pulsar_ray.launch.log_files import ActorLog
from pulsar_ray.testing.waiting import wait_until
from tests.unit.cli.conftest import Run

ORDERS = "persistent://public/default/orders"


class Found:
    """Answers for all nodes, and keeps what was asked for."""

    def __init__(self) -> None:
        self.logs: list[ActorLog] = []
        self.silent: list[str] = []
        self.asked: tuple[str, int] = ("", 0)

    def __call__(self, names: str, tail_lines: int) -> tuple[list[ActorLog], list[str]]:
        self.asked = (names, tail_lines)
        return self.logs, self.silent

    def means(self, actor: str) -> bool:
        """Whether the files of this actor were asked for."""
        return re.fullmatch(self.asked[0], actor) is not None


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    answers = Found()
    monkeypatch.setattr(logs, "find_logs", answers)

    def join(*_: Any, **__: Any) -> None:
        """There is no Ray."""

    monkeypatch.setattr(logs, "join_session", join)
    return answers


def test_each_file_is_a_line_with_its_actor(run: Run, found: Found) -> None:
    found.logs = [ActorLog("one", "/s/logs/worker-1.err", ORDERS, 7, 1500, 0.0, ["last words"])]
    done = run(Target(), "logs", "orders", "--tail", "3")
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    assert first.endswith(f"1.5 kB  one  /s/logs/worker-1.err  {ORDERS}")
    assert second == "    last words"
    assert found.asked[1] == 3
    assert found.means(ORDERS)
    assert found.means(f"{ORDERS} -> audit")
    assert not found.means("Controller")


def test_a_subscription_alone(run: Run, found: Found) -> None:
    found.logs = [ActorLog("one", "/l", f"{ORDERS} -> audit", 7, 0, 0.0)]
    assert run(Target(), "logs", "orders", "-s", "audit").exit_code == 0
    assert found.means(f"{ORDERS} -> audit")
    assert not found.means(ORDERS)


def test_without_a_topic_the_controller_and_the_stores(run: Run, found: Found) -> None:
    assert run(Target(), "logs").exit_code == 0
    assert found.means("Controller")
    assert found.means("Store(/data)")
    assert not found.means(ORDERS)


def test_a_silent_node_is_named(run: Run, found: Found) -> None:
    found.silent = ["two"]
    found.logs = [ActorLog("one", "/l", ORDERS, 7, 0, 0.0)]
    assert "two did not answer" in run(Target(), "logs", "orders").stderr


def test_a_topic_that_nobody_used_is_an_error(run: Run, found: Found) -> None:
    done = run(Target(), "logs", "orders", "-s", "audit")
    assert done.exit_code == 1
    assert f"{ORDERS} has no log files for its subscription audit" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["-s", "audit"], "give the topic"), (["a/b"], "a/b"), (["orders", "--tail", "-1"], "-1")],
)
def test_wrong_arguments_are_named(run: Run, found: Found, arguments: list[str], reason: str) -> None:
    done = run(Target(), "logs", *arguments)
    assert done.exit_code in (1, 2)
    assert reason in done.stderr


def test_it_says_that_it_waits(
    run: Run, screen: io.StringIO, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    found.logs = [ActorLog("one", "/l", ORDERS, 7, 0, 0.0)]

    def slow(names: str, tail_lines: int) -> tuple[list[ActorLog], list[str]]:
        wait_until(lambda: "asking the nodes" in screen.getvalue(), what="the line of progress")
        return found(names, tail_lines)

    monkeypatch.setattr(logs, "find_logs", slow)
    assert run(Target(), "logs", "orders").exit_code == 0
