"""A broker process's log, as a process of its own writes it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging
import sys
from pathlib import Path
from pulsar_ray.broker.serving.logs.broker_log import begin_broker_log
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.logs.log_lines import LogContext, about

context = LogContext("dispatcher", "head", "0a1b2c3d", "persistent://public/default/a b", "audit")
form, level, directory = sys.argv[1:]
for _ in range(2):
    begin_broker_log(context, form=form, level=level, directory=Path(directory) if directory else None)
logger = logging.getLogger("pulsar_ray.actors.stores.stores")
for _ in range(50):
    logger.warning("no store on node %s: %s", "0a1b", "it is on NFS")
for _ in range(2):
    event(logger, "made")
logger.info("of another", extra=about(topic="persistent://public/default/x", subscription="-"))
logger.debug("unseen")
try:
    raise ValueError("the cause\\n2026-01-01T00:00:00.000Z INFO dispatcher node=head/0a1b2c3d "
        "topic=t subscription=s pid=1: forged by the cause\\x1b[2J")
except ValueError:
    logger.exception("looking for stores failed\\n2026-01-01T00:00:00.000Z INFO forged")
"""

LINE = (
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (\w+) dispatcher node=head/0a1b2c3d "
    r'topic=("persistent://public/default/a b"|\S+) subscription=(\S+) pid=\d+: (.*)'
)
OWN = '"persistent://public/default/a b"'
WRITTEN = [
    ("WARNING", OWN, "audit", "no store on node 0a1b: it is on NFS"),
    ("INFO", OWN, "audit", "made"),
    ("INFO", OWN, "audit", "made"),
    ("INFO", "persistent://public/default/x", '"-"', "of another"),
    ("ERROR", OWN, "audit", r"looking for stores failed\n2026-01-01T00:00:00.000Z INFO forged"),
]


def run(form: str, level: str, directory: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, form, level, directory]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def lines(text: str) -> list[tuple[str, ...]]:
    return [found.groups() for line in text.splitlines() if (found := re.fullmatch(LINE, line))]


def test_each_line_says_when_where_and_about_what() -> None:
    ended = run("text", "INFO", "")
    assert lines(ended.stderr) == WRITTEN
    assert "  ValueError: the cause\n  2026" in ended.stderr
    assert "forged by the cause\\x1b[2J" in ended.stderr
    assert ended.stdout == ""


def test_the_file_has_every_line_and_standard_error_those_that_need_an_eye(tmp_path: Path) -> None:
    ended = run("text", "INFO", str(tmp_path))
    assert lines((tmp_path / "pulsar_ray.log").read_text()) == WRITTEN
    assert lines(ended.stderr) == [line for line in WRITTEN if line[0] != "INFO"]


def test_lines_as_json(tmp_path: Path) -> None:
    run("json", "INFO", str(tmp_path))
    text = (tmp_path / "pulsar_ray.log").read_text()
    first, *_, last = (json.loads(line) for line in text.splitlines())
    assert first["time"].endswith("Z")
    assert {key: first[key] for key in first if key not in ("time", "pid")} == {
        "level": "WARNING",
        "component": "dispatcher",
        "host": "head",
        "node": "0a1b2c3d",
        "topic": "persistent://public/default/a b",
        "subscription": "audit",
        "logger": "pulsar_ray.actors.stores.stores",
        "message": "no store on node 0a1b: it is on NFS",
    }
    assert last["message"].endswith("forged")
    assert "ValueError: the cause" in last["exception"]
    assert len(text.splitlines()) == len(WRITTEN)


def test_a_level_can_be_chosen(tmp_path: Path) -> None:
    run("text", "ERROR", str(tmp_path))
    assert [line[0] for line in lines((tmp_path / "pulsar_ray.log").read_text())] == ["ERROR"]
    run("text", "DEBUG", str(tmp_path))
    assert "unseen" in (tmp_path / "pulsar_ray.log").read_text()


def test_a_file_that_takes_nothing_sends_all_lines_to_standard_error(tmp_path: Path) -> None:
    assert lines(run("text", "INFO", str(tmp_path / "not there")).stderr) == WRITTEN
