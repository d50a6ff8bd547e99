"""The clients' processes of a round, as it starts, kills, stops and ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from pulsar_ray.testing.waiting import wait_until
from tests.torture.real.client_process import CALM, CONSUMERS, PRODUCERS, READERS, ProcessSpec
from tests.torture.real.cluster import ROOT
from tests.torture.real.scene_process import CAUGHT_UP, CLOSE, MISSING, OPEN
from tests.torture.round import CATCH_UP_S
from tests.torture.scenes import Scene

PARTS = ((PRODUCERS, 0, 1), (CONSUMERS, 0, 2), (CONSUMERS, 1, 2), (READERS, 0, 1))
END_S = 120.0
DUMP_S = 5.0
LOG_END = 6_000


class ProgramProcess:
    """A program of this package with its output in a file."""

    def __init__(self, log: Path, module: str, *arguments: str) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def tell(self, line: str) -> None:
        """Write a line to it, if it lives."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def tell_end(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self.tell_end()

    def wait_end(self, timeout_s: float) -> str:
        """Wait for its end; what was wrong with that, or nothing."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout_s)
            return "" if code == 0 else f"ended with {code}:\n{self.said()[-LOG_END:]}"
        os.kill(self.pid, signal.SIGUSR1)  # its threads' stacks go into its log
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(DUMP_S)
        self.kill()
        return f"stands still for {timeout_s} s:\n{self.said()[-LOG_END:]}"


class Client:
    """Some clients of a scene: one process at a time, each with a successor when it is killed."""

    def __init__(self, spec: ProcessSpec, logs: Path) -> None:
        self._logs = logs
        self.spec = spec
        self._start()

    @property
    def name(self) -> str:
        return f"{self.spec.scene}-{self.spec.role}-{self.spec.part}"

    def _start(self) -> None:
        self.program = ProgramProcess(
            self._logs / f"{self.name}-{self.spec.life}.log",
            "tests.torture.real.client_process",
            json.dumps(asdict(self.spec)),
        )

    def start_again(self, address: str) -> None:
        """Kill it, and start its successor."""
        self.program.kill()
        self.spec = replace(self.spec, address=address, life=self.spec.life + 1)
        self._start()

    def calm(self) -> None:
        """Let its consumers give back and leave nothing any more."""
        self.program.tell(CALM)


def clients_of(scene: Scene, address: str, seed: int, history: Path, logs: Path) -> list[Client]:
    """All processes of a scene, started."""
    return [
        Client(ProcessSpec(address, scene.name, role, part, parts, 0, seed, str(history)), logs)
        for role, part, parts in PARTS
    ]


def open_scene(scene: Scene, address: str, history: Path, logs: Path) -> None:
    """Make a scene's topic and subscriptions. Raises AssertionError."""
    program = _scene_process(OPEN, scene, address, history, logs)
    wrong = program.wait_end(END_S)
    program.tell_end()
    assert not wrong, wrong


class ClosingScene:
    """A process that looks at a scene's end: its log, then the leftovers behind its consumers."""

    def __init__(self, scene: Scene, address: str, history: Path, logs: Path) -> None:
        self.scene = scene
        self._program = _scene_process(CLOSE, scene, address, history, logs)

    def wait_caught_up(self) -> str:
        """Wait until consumers have all that is stored; what is missing after long, or nothing."""
        program = self._program

        def answer() -> str:
            assert not program.has_ended, program.said()[-LOG_END:]
            lines = program.said().splitlines()
            return next((line for line in lines if line.startswith((CAUGHT_UP, MISSING))), "")

        said = wait_until(answer, CATCH_UP_S + END_S, f"the log of {self.scene.name}")
        return said.removeprefix(CAUGHT_UP)

    def end(self) -> str:
        """Let it look at the leftovers; what was wrong with that."""
        self._program.tell_end()
        return self._program.wait_end(END_S)


def _scene_process(what: str, scene: Scene, address: str, history: Path, logs: Path) -> ProgramProcess:
    return ProgramProcess(
        logs / f"{what}-{scene.name}.log",
        "tests.torture.real.scene_process",
        *(what, scene.name, address, str(history)),
    )
