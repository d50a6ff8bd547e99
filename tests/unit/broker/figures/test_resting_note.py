"""Notes of sleeping partitions' backlogs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.broker.figures.actor_report import StoredBacklog
from pulsar_ray.broker.figures.node_figures import RestingPartition
from pulsar_ray.broker.figures.resting_note import (
    RESTING_NOTE,
    read_resting_note,
    read_resting_notes,
    write_resting_note,
)

PARTITION = RestingPartition(
    'persistent://public/default/we"ird\n', 1234.0, {"sub\u00fc": StoredBacklog(3, 300, 1_700_000_000_000, 2)}
)


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "17").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "18").mkdir()
    write_resting_note(tmp_path / "17", PARTITION)
    write_resting_note(tmp_path / "17", PARTITION)
    assert list(read_resting_notes(tmp_path)) == [(17, PARTITION)]
    assert read_resting_note(tmp_path / "18") is None
    assert list(read_resting_notes(tmp_path / "away")) == []


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"[1, 2, 3]", b'["no topic", 1, {}]', b'["a", 1, {"s": ["x"]}]', b"\xff"]
)
def test_a_damaged_note_is_as_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / RESTING_NOTE).write_bytes(text)
    note = read_resting_note(tmp_path)
    assert note is None or isinstance(note, RestingPartition)
    if text != b'["no topic", 1, {}]':
        assert note is None
