"""Every group of benchmarks runs to its end, as short as it can be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import GROUPS

SHORTEST = "0.001"
DEADLINE_S = 900


@pytest.mark.long
@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_benchmarks_gives_lines(name: str, tmp_path: Path) -> None:
    kept = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks", "--scale", SHORTEST, "--json", str(kept), name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(kept.read_text())
    assert report["groups"].get(name) or report["skipped"].get(name), report
