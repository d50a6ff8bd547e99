"""`make flows` counts what a message runs through."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_flow_is_counted() -> None:
    # In a process of its own: what is traced slows everything else.
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.flows"],
        cwd=ROOT,
        env={**os.environ, "PULSAR_RAY_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = re.findall(r"^(.*): (\d+) files, (\d+) functions$", told, re.MULTILINE)
    assert [name for name, *_ in lines] == [
        "nothing",
        "send until delivered",
        "acknowledgment",
        "first policy change",
        "policy change",
    ]
    for name, files, functions in lines[1:]:
        assert int(functions) > int(files) > 10, name
