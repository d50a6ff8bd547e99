"""A feed in a process of its own, which may end, hang or print nonsense."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.cli.watching.top import source as module
from pulsar_ray.cli.watching.top.source import Source
from pulsar_ray.testing.waiting import wait_until

ECHO = """
import json, sys
for number, line in enumerate(sys.stdin):
    print(json.dumps({"asked": json.loads(line), "number": number}), flush=True)
"""
Start = Callable[..., Source]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a source on a feed that is a Python program."""
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    started: list[Source] = []

    def begin(program: str, request: Callable[[], dict[str, Any]] = dict, interval_s: float = 0.01) -> Source:
        file = tmp_path / "feed.py"
        file.write_text(program)
        source = Source([sys.executable, str(file)], request, interval_s, changed.set)
        started.append(source)
        source.start()
        return source

    changed = threading.Event()
    yield begin
    for source in started:
        source.end()


def test_it_asks_for_what_is_wanted_now(start: Start) -> None:
    wanted = {"topic": "a"}
    source = start(ECHO, lambda: wanted, interval_s=3600)
    wait_until(lambda: source.figures().answer.get("asked") == {"topic": "a"}, what="an answer")
    wanted["topic"] = "b"
    source.hurry()
    wait_until(lambda: source.figures().answer.get("asked") == {"topic": "b"}, what="the next one at once")
    assert source.figures().problem == ""


def test_a_feed_that_ends_is_followed_by_another_one(start: Start, tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    once = f"""
import json, sys
lives = open({str(lives)!r}, "a"); lives.write("."); lives.close()
sys.stdin.readline()
print(json.dumps({{"life": len(open({str(lives)!r}).read())}}), flush=True)
"""
    source = start(once)
    wait_until(lambda: source.figures().answer.get("life", 0) >= 3, what="its third life")


def test_it_tells_why_the_feed_ended(start: Start) -> None:
    said = start('import json; print(json.dumps({"problem": "no broker runs here"}))')
    wait_until(lambda: said.figures().problem == "no broker runs here", what="what it said")
    died = start('import sys; sys.exit("Traceback\\n  it broke")')
    wait_until(lambda: died.figures().problem == "it broke", what="what it wrote last")
    silent = start("import os; os._exit(7)")
    wait_until(lambda: silent.figures().problem == "the feed ended with 7", what="its exit code")
    babble = start('print("Ray says hello", flush=True)')
    wait_until(lambda: "JSONDecodeError" in babble.figures().problem, what="that it is no answer")


def test_the_last_figures_stay_while_nobody_answers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.05)
    source = start("""
import sys, time
sys.stdin.readline()
print('{"topic": "t"}', flush=True)
time.sleep(3600)
""")
    wait_until(lambda: source.figures().answer == {"topic": "t"}, what="the first answer")
    wait_until(lambda: source.figures().problem.startswith("no answer for"), what="silence")
    assert source.figures().answer == {"topic": "t"}
    assert source.figures().age_s > 0


def test_a_feed_that_does_not_want_to_end_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.2)
    source = start("""
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    print("{}", flush=True)
time.sleep(3600)
""")
    wait_until(lambda: source.figures().age_s < 60, what="an answer")
    source.end()
    process = source._process
    assert process is not None
    assert process.poll() is not None
