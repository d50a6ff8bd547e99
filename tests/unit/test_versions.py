"""What pyproject.toml allows, `make test-pythons` tries and the README says are the same versions."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ROOT / "tests" / "versions"
_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT: dict[str, Any] = _toml.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "lowest": ["data", "remote", "schema", "security"],
    "lowest-spark": ["data", "remote", "schema", "security", "spark"],
    "highest": ["data", "remote", "schema", "security"],
    "highest-spark": ["data", "remote", "schema", "security", "spark"],
}


def requirements(name: str) -> list[Requirement]:
    lines = [*PROJECT["dependencies"]]
    for extra in EXTRAS[name]:
        lines += PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def tried(name: str) -> dict[str, Version]:
    """The versions that an environment of `make test-pythons` is given."""
    lines = (VERSIONS / f"{name}.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


@pytest.mark.parametrize("name", ["lowest", "lowest-spark"])
def test_the_lowest_versions_are_tried(name: str) -> None:
    lowest: dict[str, Version] = {}
    for requirement in requirements(name):
        for specifier in requirement.specifier:
            if specifier.operator in (">=", "=="):
                package = canonicalize_name(requirement.name)
                version = Version(specifier.version)
                lowest[package] = max(version, lowest.get(package, version))
    assert tried(name) == lowest


@pytest.mark.parametrize("name", ["highest", "highest-spark"])
def test_the_highest_versions_that_are_tried_are_allowed(name: str) -> None:
    pins = tried(name)
    assert {"ray", "pyarrow"} <= pins.keys()
    for requirement in requirements(name):
        version = pins.get(canonicalize_name(requirement.name))
        assert version is None or version in requirement.specifier, requirement


def test_the_readme_says_which() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    for package, title in (("ray", "Ray"), ("pyarrow", "pyarrow")):
        lowest, highest = (_short(tried(name)[package]) for name in ("lowest", "highest"))
        assert f"{title} {lowest} to {highest}" in readme
    assert f"Ray {_short(tried('lowest-spark')['ray'])} or later" in readme
    pythons = [
        line.rpartition(" ")[2]
        for line in PROJECT["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert f"Python {pythons[0]} to {pythons[-1]}" in readme


def _short(version: Version) -> str:
    return f"{version.major}.{version.minor}" if version.major == 2 else str(version.major)
