"""`pulsar-ray health --this-node`: what a probe of one machine sees."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pulsar_ray.broker.health.finding import ERROR, Finding, HealthReport
from pulsar_ray.broker.health.health_socket import HealthSocket
from pulsar_ray.cli.main import main

HERE = socket.gethostname()
AWAY = Finding(ERROR, "store", "s-2", "another-machine", "is on no running node", "start that node again")


@contextmanager
def answering(data_dir: Path, answer: dict[str, Any]) -> Iterator[None]:
    """Serve a store's socket that gives this answer."""

    async def report() -> dict[str, Any]:
        return answer

    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    served = HealthSocket(data_dir, report)
    asyncio.run_coroutine_threadsafe(served.begin(), loop).result(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(served.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def probe(data_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["health", "--this-node", "--data-dir", str(data_dir), *options])


def reported(*findings: Finding) -> dict[str, Any]:
    return {"address": "192.0.2.1:6379", "report": HealthReport(list(findings), 2, 5).described()}


def test_a_machine_is_well_while_another_one_is_away(tmp_path: Path) -> None:
    with answering(tmp_path, reported(AWAY)):
        ran = probe(tmp_path, "--json")
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["findings"] == []


def test_what_is_wrong_on_this_machine_is_named_and_counts(tmp_path: Path) -> None:
    full = Finding(ERROR, "store", "s-1", HERE, "the disk is full")
    with answering(tmp_path, reported(AWAY, full)):
        ran = probe(tmp_path)
    assert ran.exit_code == 3
    assert "the disk is full" in ran.output
    assert "another-machine" not in ran.output


def test_a_silent_controller_is_no_fault_of_this_machine(tmp_path: Path) -> None:
    with answering(tmp_path, {"address": "192.0.2.1:6379", "silent": "no controller runs"}):
        ran, strict = probe(tmp_path), probe(tmp_path, "--strict")
    assert ran.exit_code == 0
    assert "no controller runs" in ran.output
    assert strict.exit_code == 3


@pytest.mark.parametrize("makes_directory", [True, False])
def test_a_machine_whose_store_does_not_answer_is_not_well(tmp_path: Path, makes_directory: bool) -> None:
    data_dir = tmp_path / "data"
    if makes_directory:
        data_dir.mkdir()
    ran = probe(data_dir)
    assert ran.exit_code == 1
    assert f"no store answers in {data_dir}" in ran.output
