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
    "retry_and_dead_letters": "2 were sent back; all 30 payments are paid",
    "delayed_jobs": "3 reminders came, none of them early",
    "events_between_actors": "600 readings sent, all seen; the monitor died once, and saw ... of them twice",
    "arrow_pipeline": "DDD ...",
    "keyed_consumers": "40 customers' orders were handled in order",
    "failover_consumers": "400 bookings, in order for each account; bob took over",
    "leader_election": "a leader that was evicted gets ProducerFenced",
    "exactly_once_ingestion": "1000 lines counted once each, after 4 crashes",
    "ray_data": "3 sums of 3000 sales, stored once",
    "compacted_topic": "SUCCESS: 60 messages removed, 1 left, apples cost b'129'",
    "typed_topics": "a field of another type was refused; 2 versions were read by 3 programs",
    "asyncio_pipeline": "200 requests answered by 8 workers; the sum of all squares is 2646700",
}
SHORT = {"quickstart", "events_between_actors"}
# Each starts a part of Ray that this package's users may have, and takes its time.
LONG_LAST_LINE = {
    "serve_by_backlog": "600 documents measured; 1 replica grew to ..., and shrank to 1 again",
    "serve_tasks": "200 tasks done, 20 at the second try; 1 replica grew to ..., and shrank again",
    "tune_events": "4 trials logged 10 steps each, in order; the best rate is 0.5",
}
NEEDS = {"serve_by_backlog": "fastapi", "serve_tasks": "fastapi", "tune_events": "tensorboardX"}
IN_TESTS_SPARK = {"spark_report", "spark_typed"}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == (
        LAST_LINE.keys() | LONG_LAST_LINE.keys() | IN_TESTS_SPARK
    )


def test_every_example_says_how_to_run_it() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(path.read_text())) or "")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in sorted(LAST_LINE)],
)
def test_it_runs_on_its_own(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    lines = run_example(name, environment, tmp_path)
    assert is_printed(["...", LAST_LINE[name]], lines), lines


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(LONG_LAST_LINE))
def test_it_runs_with_another_part_of_ray(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name])
    lines = run_example(name, environment, tmp_path)
    assert is_printed(["...", LONG_LAST_LINE[name]], lines), lines
