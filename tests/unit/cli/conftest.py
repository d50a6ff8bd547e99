from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from pulsar_ray.cli.main import main

Run = Callable[..., Result]
# Click before 8.2 has to be told to keep standard error out of standard output; later ones always do.
_APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


class _Flushed:
    """The command line; click before 8.2 reads its standard error before that is flushed."""

    name = main.name

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return main.main(*arguments, **options)
        finally:
            sys.stderr.flush()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal, on which commands report progress at once."""
    module: Any = importlib.import_module("pulsar_ray.cli.watching.progress")
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=300)
    monkeypatch.setattr(module, "err", lambda: console)
    monkeypatch.setattr(module, "SHOWN_AFTER_S", 0.0)
    return written


@pytest.fixture
def run() -> Run:
    """Runs the command line in this process: `run(target, "produce", "t", input=...)`."""

    def invoke(target: Any, *arguments: str, **options: Any) -> Result:
        program: Any = _Flushed()
        return CliRunner(**_APART).invoke(program, list(arguments), obj=target, **options)

    return invoke
