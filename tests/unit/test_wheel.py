"""A wheel has all that a checkout has: code, type marks, the dashboard and the alert rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"pulsar_ray": ROOT / "pulsar_ray", "pulsar_ray_spark": ROOT / "spark" / "pulsar_ray_spark"}
INSTALLED = """
import sys
from importlib.metadata import distribution
from pulsar_ray.monitoring.dashboard import DASHBOARD_FILE
from pulsar_ray.monitoring.installing import RULES_FILE
(command,) = [each for each in distribution("pulsar-ray").entry_points if each.name == "pulsar-ray"]
assert "ray" not in sys.modules
print(DASHBOARD_FILE, RULES_FILE, command.load().__module__, sep="\\n")
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a wheel that was made from this checkout, as an installation has them."""
    made, unpacked = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("unpacked")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", *offline, "--wheel-dir", str(made), str(ROOT)]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "PULSAR_RAY_PURE": "1"})
    (wheel,) = made.iterdir()
    with ZipFile(wheel) as packed:
        packed.extractall(unpacked)
    return unpacked


def files_below(directory: Path) -> dict[str, bytes]:
    """All but what Python and `make setup` make of them."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
        and not ("__pycache__" in path.parts or path.suffix == ".so" or path.name.startswith(".compiled."))
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_in_it(unpacked: Path, package: str) -> None:
    assert files_below(unpacked / package) == files_below(PACKAGES[package])


def test_commands_find_their_data_there(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        check=True,
        capture_output=True,
        text=True,
    )
    dashboard, rules, command = done.stdout.splitlines()
    assert Path(dashboard) == unpacked / "pulsar_ray" / "monitoring" / "dashboard.json"
    assert Path(rules) == unpacked / "pulsar_ray" / "monitoring" / "alert_rules.yml"
    assert Path(dashboard).is_file()
    assert Path(rules).is_file()
    assert command == "pulsar_ray.cli.main"
