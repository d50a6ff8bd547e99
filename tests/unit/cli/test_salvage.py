"""`pulsar-ray salvage` shows what an ended directory alone has, and asks before it publishes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget
from tests.unit.journal.test_store_journal import homes, taken_over, url
from tests.unit.maintenance.test_salvage import left

__all__ = ["homes", "left", "url"]


def test_it_shows_what_is_only_there_and_publishes_nothing_unasked(
    run: Run, left: Path, homes: tuple[Path, Path], url: str
) -> None:
    refused = run(FakeTarget(), "salvage", str(left))
    assert (refused.exit_code, "was not ended" in refused.stderr) == (1, True)
    taken_over(homes[1], url)
    shown = run(FakeTarget(), "salvage", str(left))
    assert (shown.exit_code, ":4" in shown.stdout) == (0, True)
    (told,) = json.loads(run(FakeTarget(), "salvage", str(left), "--json").stdout)
    assert (told["messages"], told["topic"]) == (2, "persistent://public/default/orders")
    declined = run(FakeTarget(), "salvage", str(left), "--publish", input="n\n")
    assert (declined.exit_code, "nothing was published" in declined.stderr) == (1, True)
