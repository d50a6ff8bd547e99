"""Slots read from segment files; what cannot be read counts as keyless."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulsar_ray.actors.log_feed import blocks_of
from pulsar_ray.actors.slot_reader import read_slots
from pulsar_ray.dispatch.block_ref import BlockRef
from pulsar_ray.dispatch.sticky_key import Slotting, slot_of
from pulsar_ray.format.block import BlockHeader, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single
from pulsar_ray.ledger.reader import SegmentReader
from tests.stored_blocks import append_blocks, open_log

Stored = tuple[BlockHeader, list[Buffer]]


def stored(seq: int, *keys: str, size: int = 20) -> Stored:
    """One message, or rows that are entries."""
    ids: dict[str, Any] = {"incarnation": 5, "entry_seq": seq, "publish_time_ms": 0}
    if len(keys) == 1:
        buffers = encode_single(b"v" * size, sequence_id=seq, metadata=BlockMetadata(key=keys[0]), **ids)
    else:
        payload, columns = encode_rows([b"v" * size] * len(keys), keys=keys)
        last = seq + len(keys) - 1
        buffers = encode_batch(
            payload,
            columns,
            message_count=len(keys),
            row_is_entry=True,
            first_sequence_id=seq,
            last_sequence_id=last,
            **ids,
        )
    return parse_block_header(b"".join(bytes(buffer) for buffer in buffers)), buffers


def refs_of(path: Path) -> list[BlockRef]:
    with SegmentReader(path) as reader:
        size = path.stat().st_size
        return [
            ref for at, frame in reader.read_frames(4096, size, size) for ref in blocks_of(1, 0, at, frame)
        ]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    log = open_log(tmp_path / "log")
    append_blocks(log, [stored(0, "a"), stored(1, "k" * 5000), stored(2, "b", "c", "b")])
    append_blocks(log, [stored(5, "d", size=600_000), stored(6, *(f"key-{n}" for n in range(3000)))])
    path = next((tmp_path / "log").glob("*.seg"))
    (tmp_path / "1-0.seg").symlink_to(path)
    return tmp_path / "1-0.seg"


def test_blocks_of_all_kinds_are_found_in_the_file(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_ray.actors.slot_reader.segment_name", lambda *_: segment.name)
    refs = refs_of(segment)
    found = read_slots(str(segment.parent), refs, Slotting.RANGE)
    told = [one.tolist() if isinstance(one, np.ndarray) else one for one in found]
    assert told[:4] == [
        slot_of("a", Slotting.RANGE),
        slot_of("k" * 5000, Slotting.RANGE),
        [slot_of(key, Slotting.RANGE) for key in "bcb"],
        slot_of("d", Slotting.RANGE),
    ]
    assert told[4] == [slot_of(f"key-{n}", Slotting.RANGE) for n in range(3000)]


def test_what_cannot_be_read_counts_as_keyless_and_spares_the_others(
    segment: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pulsar_ray.actors.slot_reader.segment_name", lambda *_: segment.name)
    refs = refs_of(segment)
    with segment.resolve().open("r+b") as file:
        file.seek(refs[2].offset)
        file.write(b"\xff" * refs[2].length)
        file.truncate(refs[4].offset + 100)
    with caplog.at_level(logging.WARNING):
        found = read_slots(str(segment.parent), refs, Slotting.RING)
    keyless = slot_of("NON_KEY", Slotting.RING)
    assert found == [
        slot_of("a", Slotting.RING),
        slot_of("k" * 5000, Slotting.RING),
        keyless,
        slot_of("d", Slotting.RING),
        keyless,
    ]
    assert "count as keyless" in caplog.text
