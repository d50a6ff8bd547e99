"""Counts the objects below a prefix of an object store, and tells their cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_ray.journal.objects import is_object, place_of
from pulsar_ray.journal.storage.object_store import Listed

DAYS_OF_A_MONTH = 30
DAY_S = 86_400.0
LEAST_SPAN_S = 60.0
"""A shorter time says nothing of a day."""


class Prices(NamedTuple):
    """In dollars: of 1,000 writing requests, and of a gigabyte for a month."""

    puts: float = 0.005
    storage: float = 0.023


@dataclass
class Share:
    """The objects of one kind."""

    objects: int = 0
    bytes: int = 0


@dataclass
class Bill:
    """All objects by kind, and what a day costs if it goes on like this.

    PUTs are those of journals, by the objects that no index has made superfluous yet, and of pieces that were
    written within the last day. Lists and reads are not among them.
    """

    prices: Prices
    kinds: dict[str, Share] = field(default_factory=dict)
    puts_per_day: float = 0.0

    @property
    def objects(self) -> int:
        return sum(share.objects for share in self.kinds.values())

    @property
    def bytes(self) -> int:
        return sum(share.bytes for share in self.kinds.values())

    @property
    def puts_cost_per_day(self) -> float:
        return self.puts_per_day / 1000 * self.prices.puts

    @property
    def storage_cost_per_day(self) -> float:
        return self.bytes / 1e9 * self.prices.storage / DAYS_OF_A_MONTH


@dataclass
class _Written:
    """The objects of a store's newest life that are there."""

    life: int = -1
    first: int = 0
    last: int = 0
    since_s: float = 0.0

    def add(self, life: int, number: int, modified_s: float) -> None:
        """Take one more of them."""
        if life > self.life:
            self.life, self.first, self.last, self.since_s = life, number, number, modified_s
        elif life == self.life:
            self.first, self.last = min(self.first, number), max(self.last, number)
            self.since_s = min(self.since_s, modified_s)


def bill_of(listed: Iterable[Listed], prices: Prices, now_s: float) -> Bill:
    """Add up all objects of a prefix.

    In memory is one sum for each kind, and one for each store.
    """
    bill, written, pieces = Bill(prices), dict[str, _Written](), 0
    for key, size, modified_s in listed:
        kind, _, rest = key.partition("/")
        share = bill.kinds.setdefault(kind, Share())
        share.objects += 1
        share.bytes += size
        if kind == "journal" and is_object(key):
            place = place_of(key)
            of_store = written.setdefault(rest.partition("/")[0], _Written())
            of_store.add(place.life, place.number, modified_s)
        elif kind == "segments" and now_s - modified_s < DAY_S:
            pieces += 1
    of_journals = sum(
        (each.last - each.first + 1) * DAY_S / max(now_s - each.since_s, LEAST_SPAN_S)
        for each in written.values()
    )
    bill.puts_per_day = of_journals + pieces
    return bill
