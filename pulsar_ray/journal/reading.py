"""Reading a store's journal, and writing what may be there only once."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal.objects import (
    NEXT,
    SEALED,
    IndexObject,
    JournalObject,
    Place,
    journal_key,
    journal_prefix,
    pack_journal,
    place_of,
    unpack_index,
    unpack_journal,
)
from pulsar_ray.journal.partition_state import PartitionState, apply
from pulsar_ray.journal.requests import (
    CREATED,
    EXISTS,
    UNKNOWN,
    Create,
    Get,
    ListKeys,
    Task,
    Wait,
    ask,
    pauses_s,
)

NO_INDEX = IndexObject(b"", Place(0, 0))
MOST_UNDER_WAY = 8
"""A life has no more objects under way: none is further behind an absent one."""


@dataclass(frozen=True)
class Walk:
    """A reader found these files, and this end of the journal."""

    states: dict[str, PartitionState]
    place: Place
    is_sealed: bool
    is_foreign: bool
    index_number: int


def is_own(found: bytes, body: bytes) -> bool:
    """Whether an object that exists is our own; its bytes have the nonce."""
    return found == body


def create(key: str, body: bytes) -> Task[bytes | None]:
    """Create an object; return None, or the bytes of the other one there."""
    pauses = pauses_s()
    while (answer := (yield Create(key, body))) != CREATED:
        if answer == EXISTS:
            found = yield from ask(Get(key))
            if found is not None:
                return None if is_own(found, body) else found
        elif answer is not UNKNOWN:
            raise TypeError(f"no answer to a Create: {answer!r}")
        yield Wait(next(pauses))
    return None


def newest_index(store: str) -> Task[tuple[int, IndexObject]]:
    """Return the index that counts: the one with the highest number."""
    while names := (yield from ask(ListKeys(f"index/{store}/"))):
        stored = yield from ask(Get(names[-1]))
        if stored is not None:  # else a newer one has just replaced it
            return int(names[-1].rpartition("/")[2]), unpack_index(names[-1], stored)
    return -1, NO_INDEX


def is_foreign(life: int, closing: JournalObject | None) -> bool:
    """Whether a journal has a life that cannot precede this end."""
    return closing is not None and closing.kind == NEXT and life >= closing.life


def has_passed(index: IndexObject, place: Place) -> bool:
    """Whether an index has passed the place, whose object may be deleted."""
    return index.start > place


def ends_journal(found: JournalObject) -> bool:
    """Whether nothing behind this object is ever read."""
    return found.kind == SEALED


def walk(store: str, closing: JournalObject | None = None) -> Task[Walk]:
    """Read a journal from the newest index to its end, or to `closing`.

    `closing` is created at the first absent number.
    """
    while True:
        number, index = yield from newest_index(store)
        states = {p: PartitionState.unpack(packed) for p, packed in index.states.items()}
        found, wrong = yield from _walk_from(store, index.start, states, closing)
        # A deleted object looks absent, and could even be created again. A newer index tells.
        _, newest = yield from newest_index(store)
        if not has_passed(newest, found.place):
            if wrong is not None:
                raise wrong
            return Walk(states, found.place, found.is_sealed, found.is_foreign, number)


def refuse_hole(store: str) -> Task[None]:
    """Raise JournalDamaged if somebody has deleted an object before a journal's end.

    An end that is created there would cut off all that comes behind. If names and the last objects of each
    life look right, the rest is not read.
    """
    _, index = yield from newest_index(store)
    places = {place_of(name) for name in (yield from ask(ListKeys(journal_prefix(store))))}
    if (yield from _first_absent(store, index.start, places)) is None:
        return
    found = yield from walk(store)
    if not found.is_sealed and _are_beyond(found.place, places):
        raise JournalDamaged(
            f"{journal_key(store, found.place)} is not there, though later objects are: bring it back from "
            "the bucket's versions, or delete the later ones to go on without what they have (`pulsar-ray "
            "remote verify` names all that is missing)"
        )


def _first_absent(store: str, place: Place, places: set[Place]) -> Task[Place | None]:
    """Return the first absent place if later objects cannot have been under way."""
    while True:
        end = place
        while end in places:
            end = Place(end.life, end.number + 1)
        following: Place | None = None
        for number in range(end.number - 1, max(place.number, end.number - MOST_UNDER_WAY - 1) - 1, -1):
            key = journal_key(store, Place(place.life, number))
            stored = yield from ask(Get(key))
            item = None if stored is None else unpack_journal(key, stored)
            if item is not None and ends_journal(item):
                return None
            if item is not None and item.kind == NEXT:
                following = Place(item.life, 0)
        if following is None:
            return end if _are_beyond(end, places) else None
        place = following


def _are_beyond(end: Place, places: set[Place]) -> bool:
    """Whether objects are there that cannot have been under way while this place is absent."""
    return any(
        each.life > end.life or (each.life == end.life and each.number >= end.number + MOST_UNDER_WAY)
        for each in places
    )


def _walk_from(
    store: str, place: Place, states: dict[str, PartitionState], closing: JournalObject | None
) -> Task[tuple[Walk, JournalDamaged | None]]:
    wrong: JournalDamaged | None = None
    sealed, foreign = False, is_foreign(place.life, closing)
    while not foreign:
        item = yield from _read_or_close(store, place, closing)
        if item is None or (closing is not None and item.nonce == closing.nonce):
            sealed = closing is not None and closing.kind == SEALED
            break
        if ends_journal(item):
            sealed = True
            break
        foreign = is_foreign(item.life, closing)
        if foreign:
            break
        for append in item.appends:
            try:
                apply(states, append)
            except JournalDamaged as error:
                wrong = wrong or error
        place = Place(item.life, 0) if item.kind == NEXT else Place(place.life, place.number + 1)
    return Walk(states, place, sealed, foreign, -1), wrong


def _read_or_close(store: str, place: Place, closing: JournalObject | None) -> Task[JournalObject | None]:
    key = journal_key(store, place)
    stored = yield from ask(Get(key))
    if stored is None and closing is not None:
        stored = yield from create(key, pack_journal(closing))
        if stored is None:
            return closing
    return None if stored is None else unpack_journal(key, stored)


def stores_in_bucket() -> Task[list[str]]:
    """Return the stores that have written anything, also those that are sealed."""
    found: set[str] = set()
    for prefix in ("index/", "journal/"):
        found.update(name.split("/")[1] for name in (yield from ask(ListKeys(prefix))))
    return sorted(found)
