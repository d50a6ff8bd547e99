"""The tests that docs/guarantees.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = re.compile(r"`(?:(tests/[a-z_/0-9]+\.py)(?:::)?)?(test_[a-z_0-9]+)?`")


def missing_from(page: str) -> list[str]:
    """Names of tests that are in no file which the same line names."""
    missing = []
    for line in re.split(r"\n(?=\||\n)", page):
        named = [match for match in NAMED.findall(line) if any(match)]
        files = [ROOT / path for path, _ in named if path]
        missing += [str(path) for path in files if not path.is_file()]
        source = "".join(path.read_text() for path in files if path.is_file())
        missing += [test for _, test in named if test and f"def {test}(" not in source]
    return missing


def test_every_promise_has_the_tests_that_it_names() -> None:
    assert PAGE.count("::test_") > 25
    assert missing_from(PAGE) == []


def test_one_that_is_gone_is_missed() -> None:
    assert missing_from("| `tests/unit/test_guarantees.py::test_of_nothing` |") == ["test_of_nothing"]
    assert missing_from("| `tests/unit/test_none.py` |") == [str(ROOT / "tests/unit/test_none.py")]
