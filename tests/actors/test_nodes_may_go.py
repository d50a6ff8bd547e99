"""The demo of a broker that loses its disk tells what happened, and leaves nothing behind."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from pulsar_ray.cli.main import main

# Two Rays are started, one after the other.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.long
def test_the_demo_brings_a_broker_back_without_its_disk() -> None:
    result = CliRunner().invoke(main, ["demo", "--nodes-may-go"])
    assert result.exit_code == 0, result.output
    for told in ("published 1,000 messages", "with -9", "read the other 600 messages, each once"):
        assert told in result.output
