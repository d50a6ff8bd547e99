"""Names of segment files, and where a ledger's entries stand in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"(\d+)-(\d+)\.seg\Z")


class SegmentInfo(NamedTuple):
    """The part of a segment file that holds durable entries.

    `last_entry_id` is first - 1 while there are none.
    """

    ledger_id: int
    segment_index: int
    path: Path
    first_entry_id: int
    end_offset: int
    last_entry_id: int


def segment_name(ledger_id: int, segment_index: int) -> str:
    return f"{ledger_id}-{segment_index}.seg"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Ledger id and segment index of a segment's name; None for other names."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None
