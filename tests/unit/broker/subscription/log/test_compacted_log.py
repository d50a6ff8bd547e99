"""Which compacted form a subscription reads, and when it takes another one (ADR 0136)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.broker.subscription.log.compacted_log import CompactedLog
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.log.segment_blocks import Segment
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX, segment_name
from pulsar_ray.managed_ledger.compaction.compacted_form import remove_forms
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import Advanced

ENTRIES = 100
START = Position(1, 0)


def form(number: int, ledger_id: int, entry_id: int) -> Compacted:
    """All up to an entry, of which the first three of ledger 1 are kept."""
    return Compacted(number, ledger_id, entry_id, [(1, 99, 0, 2, 500, 3)], (1, 2, -1, 0), 500, 7, 0, 0)


class Reading:
    """A log of ledgers of 100 entries, as one subscription reads it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.view = LogView()
        self.log = CompactedLog(self.view, str(directory))

    def tell(self, compacted: Compacted | None, first: int = 1, last: int = 3) -> None:
        """A packet of the partition: ledgers first..last, and the form that holds."""
        segments = [(i, 0, f"{i}", 0, 1000, ENTRIES - 1) for i in range(first, last + 1)]
        end, told = Position(last, ENTRIES - 1), () if compacted is None else tuple(compacted)
        self.view.advanced(Advanced(1, *end, first, 0, segments, None, *self.view.last, [], told))

    def open(self, consumer_id: int = 1, at: Position = START, *, goes_on: bool = False) -> bool:
        begins = self.log.read_by(consumer_id, at, is_read_compacted=True, is_clean=True, goes_on=goes_on)
        self.look(at)
        return begins

    def look(self, position: Position, *, is_held: bool = False) -> int:
        """The number of the form that is read then."""
        self.log.look(position, is_held=is_held)
        return self.number

    @property
    def number(self) -> int:
        return 0 if self.log.compacted is None else self.log.compacted.number

    def write(self, compacted: Compacted) -> list[Segment]:
        path = self.directory / segment_name(1, COMPACTED_INDEX + compacted.number)
        path.write_bytes(b"")
        return [Segment(1, COMPACTED_INDEX + compacted.number, str(path), 0, 500, 2)]


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    reading = Reading(tmp_path)
    reading.tell(form(1, 1, 99))
    return reading


def test_a_reading_keeps_to_its_form_and_then_to_the_log(reading: Reading) -> None:
    assert reading.open()
    reading.tell(form(2, 2, 99))
    assert reading.look(START) == 2, "nothing was read yet"
    reading.tell(form(3, 3, 50))
    assert reading.look(Position(1, 2)) == 2
    assert reading.log.is_compacted_at(Position(2, 99))
    assert reading.look(Position(3, 0)) == 2
    assert not reading.log.is_compacted_at(Position(3, 0))
    assert reading.log.removed_from(Position(3, 0)) == 0, "it reads all of the log from there on"
    assert reading.log.last_kept == Position(3, 99)


def test_a_reading_that_began_without_a_form_has_the_log(reading: Reading) -> None:
    reading.tell(None)
    reading.open()
    reading.look(Position(1, 5))
    reading.tell(form(1, 3, 99))
    assert reading.look(Position(1, 5)) == 0


def test_the_next_reading_has_the_newest_form(reading: Reading) -> None:
    reading.open()
    reading.look(Position(1, 2))
    reading.tell(form(2, 2, 99))
    assert not reading.open(1, Position(1, 2)), "the same consumer, attached again"
    assert reading.number == 1
    settled = {"is_read_compacted": True, "goes_on": False}
    assert not reading.log.read_by(2, Position(1, 2), is_clean=False, **settled)
    assert reading.number == 1, "what was read of the first one is still to be delivered"
    assert reading.log.read_by(3, Position(1, 2), is_clean=True, **settled)
    assert reading.number == 2
    reading.tell(form(3, 3, 99))
    reading.log.begin()
    assert reading.number == 3


def test_where_the_log_is_gone_the_newest_form_is_read(reading: Reading) -> None:
    reading.open()
    reading.look(Position(1, 2))
    reading.tell(form(2, 3, 99))
    at = Position(2, 7)
    assert reading.look(at) == 1
    reading.tell(form(2, 3, 99), first=3)
    assert reading.look(at, is_held=True) == 1, "a subscription's own entries are not gone"
    assert reading.look(at) == 2


def test_a_ledger_that_was_read_to_its_end_may_go(reading: Reading) -> None:
    reading.open()
    reading.look(Position(1, 2))
    end = Position(2, ENTRIES)
    reading.tell(form(2, 3, 99))
    assert reading.look(end) == 1
    reading.tell(form(2, 3, 99), first=3)
    assert reading.look(end) == 1, "the next entry is the first of ledger 3"
    reading.tell(form(2, 3, 99), first=4, last=4)
    assert reading.look(end) == 2


def test_a_truncated_topic_has_no_form(reading: Reading) -> None:
    reading.open()
    reading.look(Position(1, 2))
    reading.tell(None, first=3)
    assert reading.look(Position(1, 2)) == 0


def test_one_that_goes_on_at_another_dispatcher_has_the_log_if_it_is_there(tmp_path: Path) -> None:
    for first, number in ((1, 0), (3, 2)):
        reading = Reading(tmp_path)
        reading.tell(form(2, 3, 99), first=first)
        reading.open(at=Position(2, 7), goes_on=True)
        assert reading.number == number


def test_one_that_goes_on_reads_of_the_newest_form_only_what_is_trimmed(reading: Reading) -> None:
    """It was in the form up to ledger 1: removals behind that are in no newer form, but in the log."""
    reading.tell(form(2, 2, 99), first=2)
    reading.open(at=Position(1, 1), goes_on=True)
    assert reading.number == 2
    assert reading.log.is_compacted_at(Position(1, 1))
    assert not reading.log.is_compacted_at(Position(2, 0))
    assert reading.log.needed_behind(Position(1, 0)) == Position(2, -1)
    assert reading.log.removed_from(Position(1, 0)) == ENTRIES - 3
    assert reading.log.removed_from(Position(2, 0)) == 0
    reading.tell(form(3, 3, 50), first=2)
    assert reading.look(Position(1, 2)) == 2
    assert reading.look(Position(2, 0)) == 2
    assert not reading.log.is_compacted_at(Position(2, 0))
    reading.tell(form(3, 3, 50), first=3)
    assert reading.look(Position(2, 0)) == 3, "what it needed was trimmed all the same"
    assert not reading.log.is_compacted_at(Position(3, 0))
    reading.log.begin()
    assert reading.log.is_compacted_at(Position(3, 0)), "another reading has all of it"


def test_one_that_goes_on_has_the_newest_form_alone_if_no_log_is_left(reading: Reading) -> None:
    reading.tell(form(2, 3, 99), first=4, last=3)
    reading.open(at=Position(1, 1), goes_on=True)
    assert reading.log.is_compacted_at(Position(3, 99))


def test_a_form_is_kept_until_it_was_read(reading: Reading) -> None:
    kept = reading.write(form(1, 1, 99))
    reading.open()
    reading.log.hold(kept)
    reading.tell(form(2, 3, 99))
    reading.look(Position(1, 2))
    reading.log.let_go(set(), Position(1, 2), is_reading=False)
    assert remove_forms(reading.directory, {1}) == {1}
    reading.log.let_go({COMPACTED_INDEX + 1}, Position(2, 0), is_reading=False)
    assert remove_forms(reading.directory, {1}) == {1}, "consumers have messages of it"
    reading.log.let_go(set(), Position(2, 0), is_reading=False)
    assert remove_forms(reading.directory, {1}) == set()
    assert reading.log.take_newest(Position(1, 1))
    assert reading.number == 0, "the log is there from that position on"
    assert not reading.log.take_newest(Position(1, 1))


def test_a_form_that_is_gone_is_replaced_for_what_is_trimmed(reading: Reading) -> None:
    reading.open()
    reading.look(Position(1, 1))
    reading.tell(form(2, 3, 99), first=2)
    assert reading.log.take_newest(Position(1, 1))
    assert reading.number == 2
    assert reading.log.compacted is not None
    assert reading.log.compacted.horizon.next() == Position(2, 0)


def test_what_a_reading_needs_of_the_log(reading: Reading) -> None:
    reading.open()
    assert reading.log.needed_behind(Position(1, 1)) == Position(1, 99), "before that it has the form"
    assert reading.log.needed_behind(Position(2, 5)) == Position(2, 5)
