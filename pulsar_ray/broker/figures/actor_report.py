"""The report in which an actor tells its node's store its figures. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import msgpack

from pulsar_ray.model.traffic import add_numbers

MAX_REPORT_BYTES = 4 * 1024 * 1024
"""No longer report is taken.

One with the 500 backlogs of a partition is a twentieth of that.
"""
READERS = "(readers)"
"""Stands for all non-durable subscriptions of a partition, whose names nobody chose."""
NO_TIME = -1
"""The time of the oldest message of an empty backlog."""


class StoredBacklog(NamedTuple):
    """The backlog of one durable subscription on one partition, as its partition knows it.

    `entries` and `size_bytes` lie above the durable mark-delete position, less what is acknowledged above it
    if no dispatcher serves it; `oldest_ms` is when the first of them was published, NO_TIME without one.
    """

    entries: int
    size_bytes: int
    oldest_ms: int
    holes: int = 0

    def less(self, acknowledged: int) -> StoredBacklog:
        """Return the rest of the backlog, where so many entries are acknowledged above mark-delete."""
        if not self.entries:
            return self._replace(oldest_ms=NO_TIME)
        entries = max(self.entries - acknowledged, 0)
        size = self.size_bytes * entries // self.entries
        return StoredBacklog(entries, size, self.oldest_ms if entries else NO_TIME, self.holes)


@dataclass
class Figures:
    """Counters, gauges and histograms of an actor, by the keys of `ActorReport`.

    `rates` are those of the counters that `pulsar-ray top` shows, per second over the last ten.
    """

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> Figures:
        """The figures that only grow, without the gauges."""
        return Figures(self.counters, {}, self.histograms)

    def add(self, other: Figures) -> None:
        """Add another one's figures to these."""
        for mine, others in (
            (self.counters, other.counters),
            (self.gauges, other.gauges),
            (self.rates, other.rates),
        ):
            for name, value in others.items():
                mine[name] = mine.get(name, 0) + value
        for name, numbers in other.histograms.items():
            self.histograms[name] = add_numbers(self.histograms.get(name), numbers)


@dataclass(frozen=True, kw_only=True)
class ActorReport:
    """Holds all figures of one actor.

    They are absolute since it started: the next report makes a lost one good.
    `life` tells this process from all others. `topic` is the partition's own name, `number` its number (0 for
    actors of no partition). Metrics are keyed by their names in the catalogue; one with a label besides topic
    and subscription has `name:value` as key. Partitions alone tell `backlogs`; dispatchers, which do not
    always know the end of the log, tell how many entries above mark-delete are `acknowledged`. `problem` says
    why nothing is stored, or nothing goes out; it and the rates are for people who watch, and in no metric.
    """

    kind: str
    life: int = 0
    topic: str = ""
    number: int = 0
    subscription: str = ""
    is_restarted: bool = False
    recovery_s: float = 0.0
    acknowledged: int = 0
    problem: str = ""
    figures: Figures = field(default_factory=Figures)
    backlogs: dict[str, StoredBacklog] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the report as msgpack."""
        # Clients say how much room they have: a sum of what they say may be too large for an int of msgpack.
        packed: bytes = msgpack.packb(asdict(self), default=float)
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> ActorReport:
        """Return the report; raises ValueError for anything else."""
        try:
            fields: dict[str, Any] = msgpack.unpackb(packed)
            figures = Figures(**fields.pop("figures"))
            backlogs = {name: StoredBacklog(*values) for name, values in fields.pop("backlogs").items()}
            return cls(**fields, figures=figures, backlogs=backlogs)
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.exceptions.UnpackException) as error:
            raise ValueError(f"no report of an actor: {error}") from None
