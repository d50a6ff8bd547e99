"""Progress is shown of what takes long, on a terminal, and nowhere else."""

from __future__ import annotations

import importlib
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pulsar_ray.cli.target import Target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.testing.waiting import wait_until
from tests.stored_directory import make_directory
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeConsumer, FakeTarget

module: Any = importlib.import_module("pulsar_ray.cli.watching.progress")


def _shows(screen: io.StringIO, text: str) -> None:
    wait_until(lambda: text in screen.getvalue(), what=f"{text!r} on the screen")


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(module, "err", lambda: Console(file=written, force_terminal=True))
    with progress("checking", 10, Unit.ITEMS) as shown:
        shown.advance(10)
    assert written.getvalue() == ""


def test_how_far_it_is_comes_with_the_unit(screen: io.StringIO) -> None:
    with progress("deleting topics", 20, Unit.ITEMS) as shown:
        shown.advance(3)
        shown.advance()
        _shows(screen, "4/20")
        assert "deleting topics" in screen.getvalue()
    with progress("checking", 4_000, Unit.BYTES) as shown:
        shown.reached(1_000, "checking p/17")
        _shows(screen, "1.0/4.0 kB")
        _shows(screen, "checking p/17")
    with progress("received", None, Unit.ITEMS) as shown:
        shown.reached(1_234)
        _shows(screen, "1,234")
    with progress("waiting for the broker"):
        _shows(screen, "waiting for the broker")
        _shows(screen, "0:00:00")


def test_names_do_not_steer_the_terminal(screen: io.StringIO) -> None:
    with progress("sending \x1b]0;x\x07\u202e[red]", 2, Unit.ITEMS) as shown:
        _shows(screen, r"sending \x1b]0;x\x07\u202e[red]")
        shown.reached(1, "p/\x9b2J")
        _shows(screen, r"p/\x9b2J")
    assert not {"\x07", "\u202e", "\x9b"} & set(screen.getvalue())


def test_the_line_is_gone_at_the_end(screen: io.StringIO) -> None:
    with progress("waiting") as shown:
        _shows(screen, "waiting")
    shown.end()
    shown.advance()
    erased = "\x1b[2K"
    shows_cursor = "\x1b[?25h"
    assert erased in screen.getvalue()
    assert screen.getvalue().rindex(shows_cursor) > screen.getvalue().rindex("waiting")


def test_the_line_is_gone_after_an_error(screen: io.StringIO) -> None:
    def fail() -> None:
        with progress("dividing"):
            _shows(screen, "dividing")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "\x1b[?25h" in screen.getvalue()


def test_results_go_where_they_always_go(screen: io.StringIO) -> None:
    before = sys.stdout, sys.stderr
    with progress("repairing") as shown:
        _shows(screen, "repairing")
        assert (sys.stdout, sys.stderr) == before
        lines: list[str] = []

        def write() -> None:
            # Nothing is drawn meanwhile.
            lines.append(screen.getvalue())

        shown.between(write)
        assert lines[0].rindex("\x1b[?25h") > lines[0].rindex("repairing")
        shown.reached(0, "repairing on")
        _shows(screen, "repairing on")


@pytest.mark.parametrize("console", [{}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}])
def test_other_outputs_than_a_terminal_stay_clean(
    monkeypatch: pytest.MonkeyPatch, console: dict[str, Any]
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(module, "err", lambda: Console(file=written, **console))
    monkeypatch.setattr(module, "SHOWN_AFTER_S", 0.0)
    printed: list[str] = []
    with progress("checking", 10, Unit.ITEMS) as shown:
        assert not shown.is_on
        shown.advance()
        shown.reached(5)
        shown.between(lambda: printed.append("a line"))
    assert (written.getvalue(), printed) == ("", ["a line"])


ASKING = [
    ("topics", "list"),
    ("topics", "delete", "t"),
    ("topics", "create", "t"),
    ("topics", "update", "t", "--partitions", "3"),
    ("topics", "stats", "t"),
    ("topics", "truncate", "t"),
    ("topics", "unload", "t"),
    ("topics", "peek-messages", "t", "-s", "s"),
    ("topics", "skip", "t", "-s", "s", "-n", "1"),
    ("topics", "why-blocked", "t", "-s", "s"),
    ("topics", "policies", "get", "t"),
    ("tenants", "list"),
    ("namespaces", "list", "public"),
    ("namespaces", "delete", "public/n"),
    ("namespaces", "clear-backlog", "public/n", "--force"),
    ("brokers", "list"),
    ("brokers", "healthcheck"),
    ("stats",),
]


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_commands_that_ask_the_broker_say_that_they_wait(
    run: Run, screen: io.StringIO, arguments: tuple[str, ...]
) -> None:
    class SlowTarget(FakeTarget):
        """Has an administrator who is there only once the user knows that he is waited for."""

        def admin(self) -> Any:
            admin = self.the_admin
            slow = _SlowTopics(admin.topics, screen)
            for part in ("topics", "tenants", "namespaces", "brokers"):
                setattr(admin, part, _SlowTopics(getattr(admin, part), screen))
            admin.stats = slow.waited(admin.stats)  # type: ignore[method-assign]
            return admin

    run(SlowTarget(), *arguments)
    assert "waiting for the broker" in screen.getvalue()


class _SlowTopics:
    """Looks at the screen before each call."""

    def __init__(self, real: Any, screen: io.StringIO) -> None:
        self._real = real
        self._screen = screen

    def waited(self, call: Any) -> Any:
        def waiting(*arguments: Any, **options: Any) -> Any:
            _shows(self._screen, "waiting for the broker")
            return call(*arguments, **options)

        return waiting

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _SlowTopics(found, self._screen) if name == "policies" else self.waited(found)


def test_deleting_many_topics_counts_them(run: Run, screen: io.StringIO) -> None:
    target = FakeTarget()

    def delete_many(topics: Any, force: bool) -> None:
        for number, _ in enumerate(topics):
            _shows(screen, f"{number}/3")

    target.the_admin.topics.delete_many = delete_many  # type: ignore[method-assign]
    result = run(target, "topics", "delete-many", "a", "b", "c")
    assert result.stdout == "deleted 3 topics\n"


def test_redriving_counts_messages(run: Run, screen: io.StringIO) -> None:
    target = FakeTarget()

    def redrive(topic: str, to: str | None, *, progress: Any, **_: Any) -> dict[str, int]:
        progress(40)
        progress(2)
        _shows(screen, "42/100")
        return {"u": 42}

    target.the_admin.topics.redrive = redrive  # type: ignore[method-assign]
    result = run(target, "topics", "redrive", "t", "--limit", "100")
    assert result.stdout == "sent 42 messages to u\n"


def test_messages_that_go_into_a_file_are_counted(run: Run, screen: io.StringIO) -> None:
    class SlowConsumer(FakeConsumer):
        def has_message_available(self) -> bool:
            _shows(screen, "received")
            return super().has_message_available()

    consumer = SlowConsumer([[(b"a", None), (b"b", None)]])
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--no-follow")
    assert result.stdout == "a\nb\n"
    _shows(screen, "received")


@pytest.mark.parametrize(
    ("command", "work"),
    [
        (("verify",), "maintenance.verify_directory"),
        (("repair",), "maintenance.repair_directory"),
        (("backup", "{copy}"), "maintenance.back_up"),
        (("backup", "{copy}"), "maintenance.verify_directory"),
    ],
)
def test_reading_a_directory_shows_all_of_its_bytes(
    run: Run,
    screen: io.StringIO,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    work: str,
) -> None:
    """What does the work ends once the screen shows that everything was counted."""
    make_directory(tmp_path / "data", is_closed=True)
    module_name, function = work.rsplit(".", 1)
    commands: Any = importlib.import_module(f"pulsar_ray.cli.{module_name}")
    real = getattr(commands, function)
    all_of_it = re.compile(r"([0-9.]+)/\1 k?B")

    def slow(*arguments: Any, **options: Any) -> Any:
        done = real(*arguments, **options)
        wait_until(lambda: all_of_it.search(screen.getvalue()) is not None, what="the whole of it")
        return done

    monkeypatch.setattr(commands, function, slow)
    words = [word.format(copy=tmp_path / "copy") for word in command]
    result = run(Target(data_dir=str(tmp_path / "data")), *words)
    assert result.exit_code == 0, result.output
