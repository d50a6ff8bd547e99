"""A process that runs commands one after the other: only the first loads Ray and joins it.

python -m tests.actors.command_process: each line of its input is a command, its answer a line of its output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from inspect import signature
from types import TracebackType
from typing import Any, NamedTuple

from click.testing import CliRunner

from pulsar_ray.cli.main import main

_APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class CommandProcess:
    """Runs commands of `pulsar-ray` in the environment that there is now."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.actors.command_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, *arguments: str, text: str = "") -> Done:
        """Run a command with `text` as its standard input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, text]) + "\n")
        self._process.stdin.flush()
        return Done(*json.loads(self._process.stdout.readline()))

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What Ray prints is no answer.
    os.dup2(2, 1)
    for line in sys.stdin:
        arguments, text = json.loads(line)
        done = CliRunner(**_APART).invoke(main, arguments, input=text)
        print(json.dumps([done.exit_code, done.stdout, done.stderr]), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
