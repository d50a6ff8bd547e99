"""Decisions stand in the bucket in order, by the controller that began last (ADR 0140).

    decisions/<epoch>/<number>   rows of the catalog as they are from then on, or the epoch's end
    copied/<place>/<part>        rows of all of the catalog, as it is at a place
    copies/<place>               says that all of its parts are there: reading begins at the place

A controller begins by ending the epoch of the one before it at the first absent number. An end stays for
ever, so that whoever is ended finds it at its next number, even if it has stood still for days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal.objects import (
    COPIED,
    COPIES,
    DECISIONS,
    Decision,
    Place,
    RowChange,
    copied_key,
    copy_key,
    decision_key,
    pack_copied,
    pack_copy,
    pack_decision,
    place_of_decision,
    unpack_copied,
    unpack_copy,
    unpack_decision,
)
from pulsar_ray.journal.reading import create
from pulsar_ray.journal.requests import Delete, Get, ListKeys, Task, ask

FIRST = Place(0, 0)
FROM_VERSIONS = "bring it back from the bucket's versions"


@dataclass
class Found:
    """A reader found these changes behind `begin`, and no more before `end`.

    With `is_anew` they begin with a copy of all rows, which takes the place of what the reader had.
    `was_seeded`: the bucket has a copy at all.
    """

    end: Place = FIRST
    is_anew: bool = False
    was_seeded: bool = False
    batches: list[tuple[RowChange, ...]] = field(default_factory=list)


class DecisionLog:
    """One controller's end of the log; `place` is its next number once it has begun."""

    def __init__(self, nonce: Callable[[], bytes]) -> None:
        self._nonce = nonce
        self.place = FIRST
        self.is_deposed = False
        self.since_copy = 0
        """So many decisions stand behind the newest copy."""

    def begin(self, known: Place | None) -> Task[Found]:
        """End the epoch before, and return all that was decided behind `known`.

        Raises JournalDamaged if an object is missing or damaged.
        """
        while True:
            found = yield from read(known)
            end = Decision(self._nonce(), found.end.life + 1)
            other = yield from create(decision_key(found.end), pack_decision(end))
            # A number that was deleted looks absent, and can be created again: a later copy tells.
            newest, _ = yield from _newest_copy()
            if other is None and newest <= found.end:
                self.place = Place(end.next, 0)
                self.since_copy = len(found.batches)
                return found

    def decide(self, rows: tuple[RowChange, ...]) -> Task[bool]:
        """Decide what rows are from now on; False if another controller decides instead.

        Nobody is told of it before. A controller that was ended never tries the next number.
        """
        key, body = decision_key(self.place), pack_decision(Decision(self._nonce(), 0, rows))
        if self.is_deposed or (yield from create(key, body)) is not None:
            self.is_deposed = True
            return False
        self.place = Place(self.place.life, self.place.number + 1)
        self.since_copy += 1
        return True

    def look(self) -> Task[bool]:
        """Return whether this controller may still decide."""
        if (yield from ask(Get(decision_key(self.place)))) is not None:
            self.is_deposed = True
        return not self.is_deposed

    def copy(self, parts: Iterable[tuple[RowChange, ...]]) -> Task[None]:
        """Write all rows as they are at this place, then delete what they replace."""
        place, count = self.place, 0
        for count, part in enumerate(parts, 1):
            yield from _write(copied_key(place, count - 1), pack_copied(part))
        yield from _write(copy_key(place), pack_copy(place, count))
        self.since_copy = 0
        yield from _clear_before(place)


def _write(key: str, body: bytes) -> Task[None]:
    if (yield from create(key, body)) is not None:
        raise JournalDamaged(f"two contents of one copy of the catalog: {key}")


def _clear_before(place: Place) -> Task[None]:
    names = yield from ask(ListKeys(DECISIONS))
    kept = ends_among(names)
    yield Delete(tuple(n for n in names if place_of_decision(n) < place and n not in kept))
    for prefix in (COPIES, COPIED):
        names = yield from ask(ListKeys(prefix))
        yield Delete(tuple(name for name in names if place_of_decision(name) < place))


def ends_among(names: Iterable[str]) -> set[str]:
    """Return the names of each epoch's last decision, of former ones their ends."""
    return set({place_of_decision(name).life: name for name in sorted(names)}.values())


def read(known: Place | None = None) -> Task[Found]:
    """Read all that was decided, behind `known` if no copy has passed that; ends nothing.

    Raises JournalDamaged if an object is missing or damaged.
    """
    while True:
        newest, parts = yield from _newest_copy()
        found = Found(was_seeded=bool(parts))
        found.end = newest
        if found.was_seeded and known is not None and known >= newest:
            found.end = known
        elif found.was_seeded:
            found.is_anew = True
            if not (yield from _read_copy(newest, parts, found)):
                continue
        while (item := (yield from _decision(found.end))) is not None:
            if item.next:
                found.end = Place(item.next, 0)
            else:
                found.batches.append(item.rows)
                found.end = Place(found.end.life, found.end.number + 1)
        # Ends that arrived late may stand where others were deleted, all of them before the newest copy.
        later, _ = yield from _newest_copy()
        if has_changed(newest, later):
            continue
        if (missing := (yield from _missing(newest, found.end))) is not None:
            is_there = (yield from _decision(missing)) is not None
            later, _ = yield from _newest_copy()
            if is_there or has_changed(newest, later):
                continue  # it was decided just now, or deleted behind a copy
            raise JournalDamaged(
                f"{decision_key(missing)} is not there, though it was decided: {FROM_VERSIONS}"
            )
        return found


def has_changed(before: Place, now: Place) -> bool:
    """Whether a newer copy has come, behind which objects are deleted."""
    return now != before


def _decision(place: Place) -> Task[Decision | None]:
    key = decision_key(place)
    stored = yield from ask(Get(key))
    return None if stored is None else unpack_decision(key, stored)


def _newest_copy() -> Task[tuple[Place, int]]:
    """Return the place of the newest copy and how many parts it has."""
    while names := (yield from ask(ListKeys(COPIES))):
        stored = yield from ask(Get(names[-1]))
        if stored is not None:  # else a newer one has just replaced it
            return place_of_decision(names[-1]), unpack_copy(names[-1], stored)
    return FIRST, 0


def _read_copy(place: Place, parts: int, found: Found) -> Task[bool]:
    """Read a copy; False if a newer one has taken its place meanwhile."""
    for number in range(parts):
        key = copied_key(place, number)
        stored = yield from ask(Get(key))
        if stored is None:
            newest, _ = yield from _newest_copy()
            if newest == place:
                raise JournalDamaged(f"{key} is not there, a part of the catalog's copy: {FROM_VERSIONS}")
            return False
        found.batches.append(unpack_copied(key, stored))
    return True


def _missing(begin: Place, end: Place) -> Task[Place | None]:
    """Return a place that is absent, though others tell that it was decided."""
    names = yield from ask(ListKeys(DECISIONS))
    places = {place_of_decision(name) for name in names}
    if any(place >= end for place in places):
        return end
    before = Place(end.life, end.number - 1)
    return before if end.number and end != begin and before not in places else None


def rows_in(found: Found) -> Iterator[RowChange]:
    """Yield the rows of all batches, later ones last."""
    for batch in found.batches:
        yield from batch
