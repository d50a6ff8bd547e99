from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pulsar_ray.cli.main import main

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Runs the command line in this process: `run(target, "produce", "t", input=...)`."""

    def invoke(target: Any, *arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(main, list(arguments), obj=target, **options)

    return invoke
