"""A broker actor's process ends with its raylet, also where nobody reaps that."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.ending_processes import is_gone

ACTOR = """
import sys
from pulsar_ray.broker.serving.owner_loop import prepare_broker_process
prepare_broker_process()
print("serves", flush=True)
sys.stdin.read()
"""


def actor(raylet_pid: str | None) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_RAYLET_PID"}
    if raylet_pid is not None:
        environment["RAY_RAYLET_PID"] = raylet_pid
    process = subprocess.Popen(
        [sys.executable, "-c", ACTOR], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"serves\n"
    return process


def test_it_ends_with_a_raylet_that_nobody_reaps() -> None:
    with subprocess.Popen(["sleep", "600"]) as raylet, actor(str(raylet.pid)) as process:
        assert process.poll() is None
        raylet.kill()
        wait_until(lambda: process.poll() is not None, what="the end of the actor's process")
        assert process.returncode == 72
        assert psutil.Process(raylet.pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("raylet_pid", [None, "", "x", "0", "4194305"])
def test_without_a_raylet_that_it_can_see_it_stays(raylet_pid: str | None) -> None:
    with actor(raylet_pid) as process:
        assert not is_gone(psutil.Process(process.pid))
        process.communicate()
        assert process.returncode == 0
