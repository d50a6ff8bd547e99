"""Ending the process of an embedded broker, which here is a plain program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from pulsar_ray.errors import Timeout
from pulsar_ray.launch import embedded
from pulsar_ray.launch.embedded import RECORD, EmbeddedRecord, stop_embedded
from pulsar_ray.ledger.owner_lock import start_time

ENDS_IN_A_MOMENT = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.2), sys.exit(7)));"
    "print(flush=True); signal.pause()"
)
NEVER_ENDS = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); [signal.pause()]"
)

Started = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Started]:
    """Starts a program that the record of the data directory names."""
    processes = []

    def start(program: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        record = EmbeddedRecord("address", process.pid, start_time(process.pid), "", "")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / RECORD).write_text(json.dumps(asdict(record)))
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_its_end_is_waited_for(tmp_path: Path, broker: Started) -> None:
    process = broker(ENDS_IN_A_MOMENT)
    record = stop_embedded(tmp_path)
    assert record is not None
    assert record.pid == process.pid
    assert process.poll() == 7, "it had ended when stop_embedded returned"


def test_one_that_does_not_end_is_a_timeout(
    tmp_path: Path, broker: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.1)
    process = broker(NEVER_ENDS)
    with pytest.raises(Timeout, match=str(process.pid)):
        stop_embedded(tmp_path)


def test_where_none_runs_nothing_is_ended(tmp_path: Path, broker: Started) -> None:
    assert stop_embedded(tmp_path) is None
    process = broker(ENDS_IN_A_MOMENT)
    process.kill()
    process.wait()
    assert stop_embedded(tmp_path) is None
