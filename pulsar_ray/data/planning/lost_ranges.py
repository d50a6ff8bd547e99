"""Messages of a range that are gone: trimmed, or deleted with their topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_ray.errors import DataLost
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.model.message_id import LATEST, Position

_NAMED = 5


@dataclass(frozen=True)
class LostRange:
    """Messages of a partition that were asked for and are gone, from `first` to `last`.

    With `is_replaced` they were those of a topic of this name that was deleted.
    """

    topic: str
    first: Position
    last: Position
    is_replaced: bool = False

    def __str__(self) -> str:
        replaced = " (the topic was deleted, and made anew since)" if self.is_replaced else ""
        return (
            f"{self.topic} from {self.first.ledger_id}:{self.first.entry_id} "
            f"to {self.last.ledger_id}:{self.last.entry_id}{replaced}"
        )


def number_of(place: Position) -> int | None:
    """The number of a place's partition; None if the place says none."""
    return None if place.ledger_id < 0 or place == LATEST else place.ledger_id >> LEDGER_COUNTER_BITS


def beginning_of(number: int) -> Position:
    """The place before all that the partition of this number ever stores."""
    return Position(number << LEDGER_COUNTER_BITS, 0)


def lost_of(topic: str, asked: Position, end: Position, trimmed: Position, number: int) -> LostRange | None:
    """Return the part of a range that is gone, None if there is none.

    The range ends before `end`. `number` is that of the partition which now has the name: places in another
    one are of a topic that was deleted. A range that asks for no message by its place, but for "earliest",
    loses nothing.
    """
    of_others = [place for place in (asked, end) if number_of(place) not in (None, number)]
    if of_others:
        return LostRange(topic, asked, of_others[-1], is_replaced=True)
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
        f"messages that were asked for are gone: {named}{more}. Give fail_on_data_loss=False to read what "
        "is left, or keep messages longer (retention, or a subscription that has not acknowledged them)"
    )
