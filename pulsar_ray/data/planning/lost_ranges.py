"""Messages that a range asks for and that are trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_ray.errors import DataLost
from pulsar_ray.model.position import Position

_NAMED = 5


@dataclass(frozen=True)
class LostRange:
    """Messages of a partition that were asked for and are trimmed, from `first` to `last`."""

    topic: str
    first: Position
    last: Position

    def __str__(self) -> str:
        return (
            f"{self.topic} from {self.first.ledger_id}:{self.first.entry_id} "
            f"to {self.last.ledger_id}:{self.last.entry_id}"
        )


def lost_of(topic: str, asked: Position, end: Position, trimmed: Position) -> LostRange | None:
    """Return the trimmed part of a range, None if there is none.

    The range ends before `end`.

    A range that asks for no message by its place, but for "earliest", loses nothing.
    """
    if asked.ledger_id < 0 or asked > trimmed or asked >= end:
        return None
    return LostRange(topic, asked, min(trimmed, end))


def check_nothing_lost(lost: Sequence[LostRange]) -> None:
    """Raise DataLost if anything is, naming topics and positions."""
    if not lost:
        return
    named = "; ".join(map(str, lost[:_NAMED]))
    more = f"; and of {len(lost) - _NAMED} more partitions" if len(lost) > _NAMED else ""
    raise DataLost(
        f"messages that were asked for are trimmed: {named}{more}. Give fail_on_data_loss=False to read what "
        "is left, or keep messages longer (retention, or a subscription that has not acknowledged them)"
    )
