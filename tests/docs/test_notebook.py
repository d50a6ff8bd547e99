from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.docs.new_user import ROOT, TIMEOUT_S

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def printed(cell: dict[str, Any]) -> str:
    """The text that a cell has on standard output."""
    outputs = cell.get("outputs", ())
    return "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")


def cells_of(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not (find_spec("nbclient") and find_spec("ipykernel") and find_spec("pyspark")),
    reason="needs nbclient, ipykernel and Spark",
)
def test_the_notebook_prints_what_it_shows(environment: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / NOTEBOOK.name
    shutil.copy(NOTEBOOK, copy)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", "--inplace", "--timeout=300", str(copy)],
        cwd=tmp_path,
        env=environment | {"IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = cells_of(NOTEBOOK)
    assert any(map(printed, shown))
    for wanted, got in zip(shown, cells_of(copy), strict=True):
        # Spark and Ray say things of their own in between.
        assert printed(got).endswith(printed(wanted)), got
