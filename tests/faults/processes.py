"""Client processes as a test starts, kills, freezes and ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from pulsar_ray.testing.waiting import wait_until
from tests.faults.client_process import ClientSpec
from tests.faults.journal import Record, read_journal

START_DEADLINE_S = 90.0
END_DEADLINE_S = 90.0


class ClientProcess:
    """One process at a time with this specification; each has a tag and a journal of its own."""

    def __init__(self, spec: ClientSpec, directory: Path) -> None:
        self._base = spec
        self._directory = directory
        self._lives = 0
        self.specs: list[ClientSpec] = []
        self.start()

    def start(self) -> None:
        """Start it, or a successor of a killed one."""
        self._lives += 1
        tag = f"{self._base.tag}-{self._lives}"
        journal = str(self._directory / f"{tag}.journal")
        spec = replace(self._base, tag=tag, journal=journal, seed=self._base.seed + self._lives)
        self.specs.append(spec)
        with open(self._directory / f"{tag}.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.client_process", json.dumps(asdict(spec))],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=Path(__file__).parents[2],
            )

    @property
    def tag(self) -> str:
        return self.specs[-1].tag

    @property
    def pid(self) -> int:
        return self.process.pid

    def lives(self) -> Iterator[tuple[ClientSpec, Iterator[Record]]]:
        """Each process's specification and records, in order."""
        for spec in self.specs:
            yield spec, read_journal(Path(spec.journal))

    def received(self) -> list[str]:
        """The heads of all payloads it has been given, in order."""
        return [r.values[1] for _, records in self.lives() for r in records if r.kind == "received"]

    def wait_started(self) -> None:
        """Wait until it has its producer or consumer."""

        def has_started() -> bool:
            self.check()
            return any(r.kind == "started" for r in read_journal(Path(self.specs[-1].journal)))

        wait_until(has_started, START_DEADLINE_S, f"the start of {self.tag}")

    def check(self) -> None:
        """Raise AssertionError if it ended by itself."""
        assert self.process.poll() is None, f"{self.tag} ended with {self.process.returncode}:\n{self.log()}"

    def log(self) -> str:
        return (self._directory / f"{self.tag}.log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._close_stdin()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)

    def tell_end(self) -> None:
        """Let it close what it has and end."""
        self._close_stdin()

    def wait_end(self) -> None:
        """Wait for the end it was told; it must be a good one."""
        code = self.process.wait(END_DEADLINE_S)
        assert code == 0, f"{self.tag} ended with {code}:\n{self.log()}"

    def _close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
