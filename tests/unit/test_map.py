"""The maps of the code, docs/architecture.md and one-message.md: what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pulsar_ray"
MAP = "".join((ROOT / "docs" / name).read_text() for name in ("architecture.md", "one-message.md"))
PATH = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`")
ELSEWHERE = {"run/": "in a data directory"}


def named(text: str) -> list[str]:
    """Paths of files and folders that a text names: with a folder, or a file's name alone."""
    return [path for path in PATH.findall(text) if path not in ELSEWHERE]


def is_there(path: str) -> bool:
    if "/" not in path:
        return any(
            next(top.rglob(path), None) is not None for top in (PACKAGE, ROOT / "spark", ROOT / "tests")
        )
    return any((root / path).exists() for root in (PACKAGE, ROOT))


def test_each_path_on_the_map_exists() -> None:
    assert [path for path in named(MAP) if not is_there(path)] == []


def test_the_map_leads_through_the_code() -> None:
    assert {"client/producer/producer.py", "dispatch/", "managed_ledger/cursor/"} <= set(named(MAP))


def test_a_file_that_has_moved_is_missed() -> None:
    assert named("see `broker/partition/gone.py`, `gone.py`, `broker/gone/` and `say_what()`") == [
        "broker/partition/gone.py",
        "gone.py",
        "broker/gone/",
    ]
    assert not any(map(is_there, ["broker/partition/gone.py", "gone.py", "broker/gone/"]))


def test_each_decision_is_in_the_index_once() -> None:
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert sorted(re.findall(r"\]\(([0-9][^)]*\.md)\)", index)) == decisions
