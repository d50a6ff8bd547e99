"""What somebody is told who waits for an embedded broker to come up."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError
from pulsar_ray.launch.embedded import ensure_embedded


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a broker that ran before; the next one says something in red, then ends."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nprintf '\\033[31mno room\\033[0m\\n'\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    directory = tmp_path / "data"
    (directory / "run").mkdir(parents=True)
    (directory / "run" / "standalone.log").write_text("serving at 127.0.0.1:1\n")
    return directory


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_failed_start_says_what_that_very_start_said(data_dir: Path, attempt: int) -> None:
    for _ in range(attempt):
        with pytest.raises(ConnectError) as caught:
            ensure_embedded(Settings(data_dir=str(data_dir)))
    log = data_dir / "run" / "standalone.log"
    assert caught.value.text == (
        f"the embedded broker ended at its start, with exit code 3; {log} says: no room"
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_somebody_before_a_terminal_is_told_that_a_broker_starts(
    data_dir: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with pytest.raises(ConnectError):
        ensure_embedded(Settings(data_dir=str(data_dir)))
    assert stderr.getvalue() == (f"starting a broker in {data_dir} ...\n" if terminal else "")
