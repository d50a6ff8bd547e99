"""The life of sessions in a process of its own: started, killed, found, stopped, and nothing left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.new_user import ROOT, TIMEOUT_S, new_environment
from tests.spark.session_life import DONE


@pytest.mark.long
@pytest.mark.timeout(600)
def test_sessions_end_without_a_trace(tmp_path: Path) -> None:
    with new_environment(tmp_path) as environment:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.session_life"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == DONE


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_program_and_a_pipe_run_on_spark(tmp_path: Path) -> None:
    report = str(ROOT / "examples" / "spark_report.py")
    with new_environment(tmp_path) as environment:

        def pulsar_ray(*arguments: str, statements: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["pulsar-ray", *arguments],
                cwd=tmp_path,
                env=environment,
                input=statements,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )

        of_program = pulsar_ray("spark", "run", report)
        piped = pulsar_ray(
            "spark", statements='print(pulsar_ray_spark.read(spark, "visits").count())\nexit(7)\n'
        )
    assert of_program.returncode == 0, of_program.stderr
    wanted = ["first report", "  Ada: 10,000", "  Grace: 10,000", "  Hedy: 10,000"]
    wanted += ["since then", "  Ada: 1,000", "  Grace: 1,000", "  Hedy: 1,000"]
    assert of_program.stdout.splitlines() == wanted, "standard output is the program's alone"
    assert (piped.returncode, piped.stdout) == (7, "33000\n"), piped.stderr
