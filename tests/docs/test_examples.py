from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.docs.fences import is_printed
from tests.docs.new_user import ROOT, run_example

EXAMPLES = ROOT / "examples"
LAST_LINE = {
    "quickstart": "received b'hello' with key greetings and {'language': 'en'}",
    "work_queue": "60 jobs done, 9 of them at the second attempt",
    "events_between_actors": "600 readings sent, all seen; the monitor died once, and saw ... of them twice",
    "arrow_pipeline": "DDD ...",
    "keyed_consumers": "40 customers' orders were handled in order",
    "failover_consumers": "400 bookings, in order for each account; bob took over",
    "asyncio_pipeline": "200 requests answered by 8 workers; the sum of all squares is 2646700",
}
IN_TESTS_SPARK = {"spark_report"}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == LAST_LINE.keys() | IN_TESTS_SPARK


def test_every_example_says_how_to_run_it() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(path.read_text())) or "")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(LAST_LINE))
def test_it_runs_on_its_own(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    lines = run_example(name, environment, tmp_path)
    assert is_printed(["...", LAST_LINE[name]], lines), lines
