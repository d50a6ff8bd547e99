from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pulsar_ray.cli.main import main

Run = Callable[..., Result]
# Click before 8.2 has to be told to keep standard error out of standard output; later ones always do.
_APART: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}


@pytest.fixture
def run() -> Run:
    """Runs the command line in this process: `run(target, "produce", "t", input=...)`."""

    def invoke(target: Any, *arguments: str, **options: Any) -> Result:
        return CliRunner(**_APART).invoke(main, list(arguments), obj=target, **options)

    return invoke
