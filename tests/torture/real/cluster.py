"""A Ray with a broker on a data directory: its start, its processes, its end, and its next start."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from pulsar_ray.testing.waiting import wait_until
from tests.ending_processes import is_gone
from tests.torture.real.host import ANSWER, NO_RAY, HostSpec

ROOT = Path(__file__).parents[3]
MARK = "TORTURED_CLUSTER"
START_S = 180.0
RAY_STARTS = 3
END_S = 90.0
WORKER_TITLE = "ray::"
ACTORS = ("TopicPartition", "SubscriptionDispatcher", "DelayedDeliveryTracker", "Controller", "StoreActor")


class RealCluster:
    """One node. Its processes are known by a mark in their environment, or by where their output goes."""

    def __init__(self, data_dir: Path, logs: Path, settings: dict[str, Any]) -> None:
        self._data_dir = data_dir
        self._logs = logs
        self._settings = settings
        self._mark = secrets.token_hex(8)
        self._starts = 0
        self._host: subprocess.Popen[str] | None = None
        self._session_dir = Path()
        self.address = ""
        self.raylet = self.gcs = 0

    def start(self) -> None:
        """Start it on the data directory, with what is in that. AssertionError if it does not come."""
        for _ in range(RAY_STARTS - 1):
            try:
                self._start()
                return
            except AssertionError:
                # On a busy machine Ray gives up before its processes are up.
                if NO_RAY not in self._log.read_text(errors="replace"):
                    raise
                self.kill()
        self._start()

    def _start(self) -> None:
        self._starts += 1
        # Sockets have short names only.
        self._session_dir = Path(tempfile.mkdtemp(prefix="rt-", dir="/tmp"))
        spec = HostSpec(str(self._data_dir), str(self._session_dir), self._settings)
        self._log = self._logs / f"host-{self._starts}.log"
        with self._log.open("w") as log:
            self._host = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.real.host", json.dumps(asdict(spec))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                env={
                    **os.environ,
                    MARK: self._mark,
                    "RAY_worker_niceness": "0",
                    "RAY_USAGE_STATS_ENABLED": "0",
                },
            )
        told = json.loads(wait_until(self._answer, START_S, "the start of the cluster"))
        self.address, self.raylet, self.gcs = told["address"], told["raylet"], told["gcs"]

    def _answer(self) -> str:
        said = self._log.read_text(errors="replace")
        assert self._host is not None
        assert self._host.poll() is None, f"the cluster did not start:\n{said[-4000:]}"
        lines = [line for line in said.splitlines() if line.startswith(ANSWER)]
        return lines[0].removeprefix(ANSWER) if lines else ""

    @property
    def is_up(self) -> bool:
        """Whether both processes live without which a cluster of one node ends."""
        return all(_lives(pid) for pid in (self.raylet, self.gcs))

    def actors(self) -> list[tuple[int, str]]:
        """The processes of the broker's actors, with the classes of these."""
        return [(pid, name) for pid, name in self._workers() if name in ACTORS]

    def other_workers(self) -> list[tuple[int, str]]:
        """Worker processes that run tasks, actors that are not the broker's, or nothing.

        Not the raylet's agents, which share its fate.
        """
        return [
            (pid, name) for pid, name in self._workers() if name not in ACTORS and not name.endswith("Agent")
        ]

    def _workers(self) -> Iterator[tuple[int, str]]:
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.raylet).children():
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    title = " ".join(process.cmdline())
                    if title.startswith(WORKER_TITLE):
                        name = title.removeprefix(WORKER_TITLE).split(".")[0].split("(")[0].strip()
                        yield process.pid, name

    def kill(self) -> None:
        """SIGKILL to every process of it, as if the node had been switched off."""

        def has_ended() -> bool:
            left = self._processes()
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return not left

        wait_until(has_ended, END_S, "the end of the cluster's processes")
        if self._host is not None:
            self._host.wait(END_S)
            assert self._host.stdin is not None
            with suppress(BrokenPipeError):
                self._host.stdin.close()
            self._host = None
        shutil.rmtree(self._session_dir, ignore_errors=True)

    def stop(self) -> None:
        """End the broker in order, then Ray. AssertionError if that fails."""
        assert self._host is not None
        assert self._host.stdin is not None
        self._host.stdin.close()
        code = self._host.wait(END_S)
        said = self._log.read_text(errors="replace")
        self.kill()
        assert code == 0, f"the broker did not end well ({code}):\n{said[-4000:]}"

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                if not is_gone(process) and self._has(process):
                    found.append(process)
        return found

    def _has(self, process: psutil.Process) -> bool:
        if process.environ().get(MARK) == self._mark:
            return True
        # A worker's title is written over its environment; its output goes into the session.
        return os.readlink(f"/proc/{process.pid}/fd/1").startswith(f"{self._session_dir}/")


def signal_process(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _lives(pid: int) -> bool:
    try:
        return not is_gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
