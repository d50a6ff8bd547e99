"""When a query runs its next batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from pulsar_ray.errors import InvalidConfiguration

_UNITS_MS = {
    "millisecond": 1,
    "ms": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
}
_INTERVAL = re.compile(r"\s*(\d+)\s*([a-z]+?)s?\s*")


class Mode(Enum):
    """How a query goes on behind a batch."""

    PROCESSING_TIME = "ProcessingTime"
    ONCE = "OneTime"
    AVAILABLE_NOW = "AvailableNow"


@dataclass(frozen=True)
class Trigger:
    """A mode, and the time between batches; 0 is as soon as there are messages."""

    mode: Mode = Mode.PROCESSING_TIME
    interval_ms: int = 0

    @classmethod
    def from_arguments(
        cls,
        processing_time: str | float | timedelta | None,
        once: bool | None,
        available_now: bool | None,
    ) -> Trigger:
        """Make a trigger of exactly one argument. Raises InvalidConfiguration."""
        if sum(given is not None for given in (processing_time, once, available_now)) != 1:
            raise InvalidConfiguration(
                'give one of processing_time="10 seconds", once=True and available_now=True'
            )
        if processing_time is not None:
            return cls(interval_ms=_interval_ms(processing_time))
        if once is False or available_now is False:
            raise InvalidConfiguration("once and available_now can only be True: leave out what is not meant")
        return cls(Mode.ONCE if once else Mode.AVAILABLE_NOW)

    def next_ms(self, now_ms: int) -> int:
        """When the next trigger is due: at the next multiple of the interval."""
        if not self.interval_ms:
            return now_ms
        return now_ms // self.interval_ms * self.interval_ms + self.interval_ms


def _interval_ms(value: str | float | timedelta) -> int:
    if isinstance(value, timedelta):
        interval_ms: float = value / timedelta(milliseconds=1)
    elif isinstance(value, str):
        match = _INTERVAL.fullmatch(value.lower())
        unit = _UNITS_MS.get(match[2]) or _UNITS_MS.get(match[2] + "s") if match else None
        interval_ms = int(match[1]) * unit if match and unit else -1
    elif isinstance(value, bool) or not isinstance(value, int | float):
        interval_ms = -1
    else:
        interval_ms = value * 1000
    if not 0 <= interval_ms < 2**53:
        raise InvalidConfiguration(
            f'processing_time={value!r}: give an interval as "10 seconds" or "500 milliseconds", '
            "a timedelta, or a number of seconds"
        )
    return int(interval_ms)
