"""Slots read from segment files; what cannot be read counts as keyless."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulsar_ray.broker.subscription.log.segment_blocks import blocks_of, read_slots
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.key_shared.sticky_key import Slotting, slot_of
from pulsar_ray.format.block import BlockHeader, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single
from pulsar_ray.ledger.reader import SegmentReader
from tests.stored_blocks import append_blocks, open_log

READER = "pulsar_ray.broker.subscription.log.segment_blocks"
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
    monkeypatch.setattr(f"{READER}.segment_name", lambda *_: segment.name)
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
    monkeypatch.setattr(f"{READER}.segment_name", lambda *_: segment.name)
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


def rows(
    seq: int, keys: list[str | None], size: int, metadata: BlockMetadata | None = None, codec: int = 0
) -> Stored:
    """Rows that are entries, with large values."""
    payload, columns = encode_rows(
        [b"v" * size] * len(keys), keys=keys, ordering_keys=[None] * (len(keys) - 1) + ["o"]
    )
    buffers = encode_batch(
        payload,
        columns,
        message_count=len(keys),
        row_is_entry=True,
        first_sequence_id=seq,
        last_sequence_id=seq + len(keys) - 1,
        incarnation=5,
        entry_seq=seq,
        publish_time_ms=0,
        metadata=metadata,
        codec=codec,
    )
    return parse_block_header(b"".join(bytes(buffer) for buffer in buffers)), buffers


@pytest.mark.parametrize("metadata", [None, BlockMetadata(properties={"p": "q" * 3000})])
@pytest.mark.parametrize("codec", [0, 1])
def test_of_rows_with_large_values_the_keys_alone_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: BlockMetadata | None, codec: int
) -> None:
    log = open_log(tmp_path / "log")
    keys: list[str | None] = [None if n % 7 == 0 else f"key-{n}" for n in range(200)]
    append_blocks(log, [rows(0, keys, 5000, metadata, codec), stored(200, "a", "b")])
    path = next((tmp_path / "log").glob("*.seg"))
    monkeypatch.setattr(f"{READER}.segment_name", lambda *_: path.name)
    refs = refs_of(path)
    if not codec:
        # What is not read may be damaged: the checksum is for whoever gets the values.
        with path.open("r+b") as file:
            file.seek(refs[0].offset + refs[0].length // 2)
            file.write(b"\xff" * 1000)
    bytes_read: list[int] = []
    read = SegmentReader.read

    def counted(reader: SegmentReader, offset: int, length: int) -> bytes:
        bytes_read.append(length)
        return read(reader, offset, length)

    monkeypatch.setattr(SegmentReader, "read", counted)
    found = [one.tolist() for one in read_slots(str(path.parent), refs, Slotting.RANGE)]  # type: ignore[union-attr]
    expected = [slot_of(key or "NON_KEY", Slotting.RANGE) for key in keys]
    expected[-1] = slot_of("o", Slotting.RANGE)
    assert found == [expected, [slot_of(key, Slotting.RANGE) for key in "ab"]]
    assert codec or sum(bytes_read) < 30_000, "of a million"


def test_a_block_that_says_to_be_longer_than_it_is_counts_as_keyless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "log")
    append_blocks(log, [rows(0, ["a", "b"], 50_000), stored(2, "c", "d")])
    path = next((tmp_path / "log").glob("*.seg"))
    monkeypatch.setattr(f"{READER}.segment_name", lambda *_: path.name)
    refs = refs_of(path)
    with path.open("r+b") as file:
        file.seek(refs[0].offset + 12)
        file.write((1 << 20).to_bytes(4, "little"))
    found = read_slots(str(path.parent), refs, Slotting.RANGE)
    assert isinstance(found[0], int)
    assert found[0] == slot_of("NON_KEY", Slotting.RANGE)
    assert found[1].tolist() == [slot_of(key, Slotting.RANGE) for key in "cd"]  # type: ignore[union-attr]
