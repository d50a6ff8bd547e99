"""Segments of a log as a dispatcher knows them, and the blocks of their frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pulsar_ray.dispatch.blocks.block_ref import BlockRef, block_ref
from pulsar_ray.format.frame import FrameHeader


class SegmentEnd(Protocol):
    """A segment file, readable up to an offset."""

    @property
    def ledger_id(self) -> int: ...
    @property
    def segment_index(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def end_offset(self) -> int: ...


class Segment(NamedTuple):
    """One segment file with its durable end."""

    ledger_id: int
    segment_index: int
    path: str
    first_entry_id: int
    end_offset: int
    last_entry_id: int


def blocks_of(ledger_id: int, segment_index: int, offset: int, frame: FrameHeader) -> Sequence[BlockRef]:
    """The blocks of a frame that starts at `offset`."""
    refs: list[BlockRef] = []
    at = offset + frame.header_length
    first, marked, at_ms = frame.first_entry_id, frame.holds_marked_blocks, frame.broker_time_ms
    for length, entries, messages in frame.blocks:
        refs.append(
            block_ref(
                (
                    ledger_id,
                    segment_index,
                    at,
                    length,
                    first,
                    entries,
                    messages,
                    entries > 1,
                    marked,
                    (),
                    at_ms,
                )
            )
        )
        at += length
        first += entries
    return refs
