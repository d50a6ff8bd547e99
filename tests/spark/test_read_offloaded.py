"""A topic that is only in the object store is read by a consumer, by Ray Data and by Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MEGABYTES = 2048
TIMEOUT_S = 1500


def _answer(tmp_path: Path) -> dict[str, Any]:
    """Run the program with a Ray and a Spark of its own."""
    arguments = [str(tmp_path / "data"), (tmp_path / "bucket").as_uri(), str(MEGABYTES)]
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.read_offloaded", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            printed, _ = program.communicate(timeout=TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    lines = printed.decode().splitlines()
    assert program.returncode == 0, f"it ended: {lines[-5:]} {(tmp_path / 'log').read_text()[-2000:]}"
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_all_get_every_message_once_and_in_order(tmp_path: Path) -> None:
    answer = _answer(tmp_path)
    whole = {"isInOrder": True, "messages": answer["messages"], "checksum": answer["checksum"]}
    assert answer["seen"] == {"consumer": whole, "ray data": whole, "spark": whole}
    assert answer["status"]["status"] == "SUCCESS"
    assert answer["status"]["offloaded_bytes"] > (MEGABYTES << 20) // 2
    # The disk is freed, and the cache has never had all of it.
    assert answer["bytesAfter"] <= answer["bytesBefore"] - answer["status"]["offloaded_bytes"]
    assert 0 < answer["cacheBytes"] <= answer["cacheLimit"] < MEGABYTES << 20
    assert answer["cacheMisses"] > 0
