"""The view in a pseudo-terminal, with a feed that is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget
from tests.unit.cli.watching.top.answers import answer, topic_row
from tests.unit.cli.watching.top.terminal_screen import HIDE, TerminalScreen, running

FEED = """
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    found = json.load(open(os.environ["ANSWER"]))
    if "problem" not in found:
        found["overview"]["topics"] = [
            topic for topic in found["overview"]["topics"] if request["filter"] in topic["name"]
        ]
        found.update(topic=request["topic"], subscription=request["subscription"])
    print(json.dumps(found), flush=True)
    if "problem" in found:
        break
"""
VIEW = """
import importlib, os, sys
command = importlib.import_module("pulsar_ray.cli.watching.top.command")
source = importlib.import_module("pulsar_ray.cli.watching.top.source")
source.AGAIN_S = 0.05
command.feed_command = lambda *_: [sys.executable, "-c", os.environ["FEED"]]
if "BROKEN" in os.environ:
    def draw(*_): raise ZeroDivisionError("a defect")
    command.draw = draw
from pulsar_ray.cli.main import main
main(["top", "--interval", "0.5"])
"""
TOPICS = [topic_row(f"topic-{number:02}", msgBacklog=100 - number) for number in range(40)]


class View:
    """`pulsar-ray top` in a terminal, and the answer that its feed gives."""

    def __init__(self, screen: TerminalScreen, answer_file: Path) -> None:
        self.screen = screen
        self._file = answer_file

    def answers(self, found: dict[str, Any]) -> None:
        staged = self._file.with_suffix(".new")
        staged.write_text(json.dumps(found))
        os.replace(staged, self._file)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "answer").write_text(json.dumps(answer(*TOPICS)))
    return {"ANSWER": str(tmp_path / "answer"), "FEED": FEED}


@pytest.fixture
def view(environment: dict[str, str]) -> Iterator[View]:
    with running([sys.executable, "-c", VIEW], environment) as screen:
        yield View(screen, Path(environment["ANSWER"]))


def test_it_is_used_and_quit(view: View) -> None:
    screen = view.screen
    screen.waits_for("topic-00")
    assert len(screen.shown()) == 24
    assert max(map(len, screen.shown())) <= 80
    assert "topic-19" not in screen.text()
    screen.press("\x1b[F")
    screen.waits_for("topic-39")
    screen.press("/-2")
    screen.waits_for("filter: -2")
    wait_until(lambda: "topic-39" not in screen.text(), what="the filter's effect")
    screen.press("\r")
    screen.press("\x1b[H\r")
    screen.waits_for("persistent://public/default/topic-20")
    screen.waits_for("SUBSCRIPTION")
    screen.press("\x1b")
    screen.waits_for("filter: -2")
    screen.press("?")
    screen.waits_for("Any key closes this.")
    screen.press("x")
    screen.press("q")
    screen.ends_with(0)


def test_it_follows_the_broker_and_survives_its_absence(view: View) -> None:
    screen = view.screen
    screen.waits_for("topic-00")
    view.answers(answer(topic_row("new")))
    screen.waits_for("new")
    view.answers({"problem": "no broker runs here: start one"})
    screen.waits_for("no broker runs here: start one, figures of")
    assert "new " in screen.text(), "the last figures stay"
    view.answers(answer(topic_row("back")))
    screen.waits_for("back")
    assert "no broker" not in screen.text()
    screen.press("p")
    screen.waits_for("paused")
    view.answers(answer(topic_row("later")))
    screen.press("p")
    screen.waits_for("later")


def test_it_takes_another_size(view: View) -> None:
    screen = view.screen
    screen.waits_for("topic-00")
    screen.resize(132, 50)
    screen.waits_for("topic-39")
    assert len(screen.shown()) == 50
    screen.waits_for("PROBLEM")
    screen.resize(30, 6)
    wait_until(lambda: len(screen.shown()) == 6, what="the small one")
    assert max(map(len, screen.shown())) <= 30
    screen.press("q")
    screen.ends_with(0)


def test_a_terminal_that_does_not_say_its_size_has_the_usual_one(environment: dict[str, str]) -> None:
    with running([sys.executable, "-c", VIEW], environment, width=0, height=0) as screen:
        screen.waits_for("topic-00")
        assert len(screen.shown()) == 24
        screen.press("q")
        screen.ends_with(0)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_give_the_terminal_back(view: View, number: signal.Signals, code: int) -> None:
    view.screen.waits_for("topic-00")
    os.kill(view.screen.process.pid, number)
    view.screen.ends_with(code)


def test_ctrl_c_is_typed(view: View) -> None:
    view.screen.waits_for("topic-00")
    view.screen.press("\x03")
    view.screen.ends_with(130)


def test_a_defect_gives_the_terminal_back(environment: dict[str, str]) -> None:
    with running([sys.executable, "-c", VIEW], {**environment, "BROKEN": "1"}) as screen:
        screen.ends_with(1)
        assert "ZeroDivisionError: a defect" in screen.written


def test_ctrl_z_gives_the_terminal_back_for_a_while(view: View) -> None:
    screen, pid = view.screen, view.screen.process.pid
    screen.waits_for("topic-00")
    screen.press("\x1a")

    def is_stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    wait_until(is_stopped, what="its stop")
    assert screen.written.count(HIDE) == 1
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: screen.written.count(HIDE) == 2, what="the view again")
    screen.waits_for("topic-00")
    screen.press("q")
    screen.ends_with(0)


def test_no_feed_is_left_behind(view: View) -> None:
    view.screen.waits_for("topic-00")
    pid = view.screen.process.pid
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    children += [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    assert children
    view.screen.press("q")
    view.screen.ends_with(0)
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), what="their end")


def test_without_a_terminal_it_says_what_to_do(run: Run) -> None:
    result = run(FakeTarget(), "top")
    assert result.exit_code == 2
    assert "give --once or --json" in result.stderr
    assert run(FakeTarget(), "top", "-s", "s").exit_code == 2
    assert run(FakeTarget(), "top", "--once", "--limit", "100000").exit_code == 2
    assert run(FakeTarget(), "top", "--interval", "0").exit_code == 2
