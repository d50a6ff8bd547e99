from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from pulsar_ray.actors import own_bytecode
from pulsar_ray.actors.own_bytecode import compile_package
from pulsar_ray.testing.waiting import wait_until


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    for name in ("one.py", "inner/two.py"):
        (tmp_path / name).write_text("VALUE = 1\n")
    return tmp_path


def _compiled(package: Path) -> list[bool]:
    return [Path(cache_from_source(path)).exists() for path in sorted(package.rglob("*.py"))]


def test_a_node_compiles_the_package_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_package(package)
    assert _compiled(package) == [True, True]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is left to compile")

    monkeypatch.setattr(subprocess, "run", refuse)
    compile_package(package)


def test_a_changed_module_is_compiled_anew(package: Path) -> None:
    compile_package(package)
    source = package / "one.py"
    cache = Path(cache_from_source(source))
    before = cache.read_bytes()
    source.write_text("VALUE = 23\n")
    later = cache.stat().st_mtime + 5
    os.utime(source, (later, later))
    compile_package(package)
    assert cache.read_bytes() != before


def test_only_an_environment_without_bytecode_needs_it(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_bytecode, "PACKAGE", package)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    own_bytecode.compile_later()
    assert _compiled(package) == [False, False]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    own_bytecode.compile_later()
    wait_until(lambda: _compiled(package) == [True, True], what="both modules compiled")


def test_a_directory_that_cannot_be_written_is_named(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    caplog.set_level(logging.INFO, logger="pulsar_ray")
    compile_package(package)
    assert f"python -m compileall {package}" in caplog.text
    assert _compiled(package) == [False, False]
