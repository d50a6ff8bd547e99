from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.fences import is_printed
from tests.docs.new_user import new_environment, run_example


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One new user's machine: the second example finds the broker that the first one started."""
    with new_environment(tmp_path_factory.mktemp("user")) as variables:
        yield variables


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_report_counts_everything_then_only_what_is_new(
    environment: dict[str, str], tmp_path: Path
) -> None:
    lines = run_example("spark_report", environment, tmp_path)
    wanted = ["first report", "  Ada: 10,000", "  Grace: 10,000", "  Hedy: 10,000"]
    wanted += ["since then", "  Ada: 1,000", "  Grace: 1,000", "  Hedy: 1,000"]
    # Spark says things of its own in between.
    assert is_printed([line for each in wanted for line in ("...", each)] + ["..."], lines), lines


@pytest.mark.long
@pytest.mark.timeout(600)
def test_three_versions_are_columns_of_the_newest(environment: dict[str, str], tmp_path: Path) -> None:
    lines = run_example("spark_typed", environment, tmp_path)
    old = "unknown, looks: None"
    wanted = ["everything", f"  p1: packed, {old}", f"  p2: packed, {old}"]
    latest = [
        "  p1: on its way, Lyon, looks: None",
        f"  p3: packed, {old}",
        "  p2: delivered, Rome, looks: 4",
    ]
    wanted += [*latest, "each parcel as it is now", *latest]
    assert is_printed([line for each in wanted for line in ("...", each)] + ["..."], lines), lines
