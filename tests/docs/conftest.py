from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a new user on a machine of their own has: no Ray that runs, no broker, an empty data directory.

    The broker that is started meanwhile is stopped at the end.
    """
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("PULSAR_RAY", "RAY"))
    }
    variables |= {
        "PULSAR_RAY_DATA_DIR": str(tmp_path / "data"),
        # Where `auto` looks for a Ray that runs: those of other tests do not count.
        "RAY_TMPDIR": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
    }
    yield variables
    subprocess.run(["pulsar-ray", "stop"], env=variables, capture_output=True, timeout=120, check=False)
