"""Putting chunks together, as they stand in the log."""

from __future__ import annotations

import random
from itertools import count

import pytest

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_groups import ChunkGroups, StoredChunk
from pulsar_ray.dispatch.blocks.chunk_limits import ChunkLimits
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.model.message_id import Position


def ref(entry: int) -> BlockRef:
    return BlockRef(1, 0, 0, 100, entry, 1, 1, False, True)


def chunk(incarnation: int, uuid: str, number: int, of: int) -> StoredChunk:
    return StoredChunk(incarnation, number, ChunkInfo(uuid, number, of, 1000))


def entries(refs: list[BlockRef] | tuple[BlockRef, ...]) -> list[int]:
    return [one.first_entry_id for one in refs]


def test_random_interleavings_give_each_message_where_its_last_chunk_is() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        _run(rng)


def _run(rng: random.Random) -> None:
    groups = ChunkGroups()
    places = count()
    open_now: dict[int, tuple[str, int, list[int]]] = {}
    waiting: dict[int, list[int]] = {}
    abandoned: list[int] = []
    done: list[int] = []
    names = count()
    for _ in range(rng.randrange(60)):
        incarnation = rng.randrange(1, 5)
        if incarnation not in open_now or rng.random() < 0.1:
            # A new message; one that was not complete will never be.
            abandoned += open_now.pop(incarnation, ("", 0, []))[2]
            open_now[incarnation] = (f"m{next(names)}", rng.randint(1, 4), [])
        uuid, size, so_far = open_now[incarnation]
        entry = next(places)
        whole = groups.take(ref(entry), chunk(incarnation, uuid, len(so_far), size), 0)
        so_far.append(entry)
        if len(so_far) < size:
            assert whole is None
        else:
            assert whole is not None
            assert (whole.first_entry_id, entries(whole.chunks)) == (entry, so_far[:-1])
            waiting[entry] = so_far
            del open_now[incarnation]
        if waiting and rng.random() < 0.3:
            last = rng.choice(list(waiting))
            groups.acknowledged((1, last))
            done += waiting.pop(last)[:-1]
        position = rng.randrange(entry + 1)
        unfinished = [so_far for _, _, so_far in open_now.values()]
        later = [chunks[:-1] for last, chunks in waiting.items() if last > position]
        kept = sorted(place.entry_id for place in groups.kept(Position(1, position)))
        assert kept == sorted(p for chunks in [*unfinished, *later] for p in chunks if p <= position)
        assert sorted(entries(groups.done)) == sorted([*abandoned, *done])


def test_a_chunk_whose_beginning_is_gone_is_done() -> None:
    groups = ChunkGroups()
    assert groups.take(ref(5), chunk(1, "m", 1, 3), 0) is None
    assert groups.take(ref(6), chunk(1, "m", 2, 3), 0) is None
    assert entries(groups.done) == [5, 6]
    assert not groups


def test_chunks_that_were_searched_for_count() -> None:
    groups = ChunkGroups()
    found = chunk(1, "m", 2, 4)._replace(before=(ref(3), ref(4)))
    assert groups.take(ref(7), found, 0) is None
    whole = groups.take(ref(9), chunk(1, "m", 3, 4), 0)
    assert whole is not None
    assert entries(whole.chunks) == [3, 4, 7]


def test_a_gap_and_a_repeated_chunk_give_the_message_up() -> None:
    for numbers in ([0, 2], [0, 0], [0, 1, 1]):
        groups = ChunkGroups()
        for entry, number in enumerate(numbers):
            assert groups.take(ref(entry), chunk(1, "m", number, 3), 0) is None
        if numbers[-1]:
            assert entries(groups.done) == list(range(len(numbers)))
        else:
            assert entries(groups.done) == [0]
        assert groups.dropped == 1


def test_beyond_the_limit_the_oldest_message_is_acknowledged_to_its_end() -> None:
    groups = ChunkGroups()
    groups.limits = ChunkLimits(2, acks_oldest=True)
    for entry, incarnation in enumerate((1, 2, 3)):
        groups.take(ref(entry), chunk(incarnation, "m", 0, 3), 0)
    assert (entries(groups.done), groups.dropped, len(groups)) == ([0], 1, 2)
    assert groups.begun == {1: "m", 2: "m", 3: "m"}, "nobody searches for what was dropped"
    groups.take(ref(3), chunk(1, "m", 1, 3), 0)
    # As if somebody had searched all the same.
    groups.take(ref(4), chunk(1, "m", 2, 3)._replace(before=(ref(0), ref(3))), 0)
    assert entries(groups.done) == [0, 3, 4]
    assert groups.begun == {2: "m", 3: "m"}
    assert groups.take(ref(5), chunk(1, "n", 0, 1), 0) == ref(5), "its producer's next message comes"


def test_the_next_message_ends_that_of_a_dropped_one() -> None:
    groups = ChunkGroups()
    groups.limits = ChunkLimits(1, acks_oldest=True)
    groups.take(ref(0), chunk(1, "m", 0, 3), 0)
    groups.take(ref(1), chunk(2, "m", 0, 3), 0)
    groups.take(ref(2), chunk(2, "m", 1, 3), 0)
    assert groups.take(ref(3), chunk(2, "m", 2, 3), 0) is not None
    groups.take(ref(4), chunk(1, "n", 0, 2), 0)
    whole = groups.take(ref(5), chunk(1, "n", 1, 2), 0)
    assert whole is not None
    assert entries(whole.chunks) == [4]


def test_beyond_the_limit_nothing_is_dropped_unless_that_is_wanted() -> None:
    for limits in (ChunkLimits(1), ChunkLimits(0, acks_oldest=True)):
        groups = ChunkGroups()
        groups.limits = limits
        for entry in range(5):
            groups.take(ref(entry), chunk(entry, "m", 0, 2), 0)
        assert (len(groups), groups.dropped) == (5, 0)


def test_what_is_overdue_is_given_up_unless_more_of_it_was_read() -> None:
    groups = ChunkGroups()
    groups.limits = ChunkLimits(expire_ms=100)
    groups.take(ref(0), chunk(1, "m", 0, 3), 1000)
    groups.take(ref(1), chunk(2, "m", 0, 3), 1050)
    assert groups.overdue(1099) == {}
    assert groups.overdue(1100) == {1: 0}
    assert groups.overdue(1150) == {1: 0, 2: 0}
    groups.take(ref(2), chunk(1, "m", 1, 3), 1150)
    for incarnation in (1, 2, 9):
        groups.left(incarnation, 0)
    assert (entries(groups.done), groups.dropped) == ([1], 1)
    assert groups.overdue(1150) == {1: 1}, "the time counts from the first chunk"
    groups.limits = ChunkLimits(expire_ms=0)
    assert groups.overdue(10**9) == {}


@pytest.mark.parametrize("last", [2, 10**9, None])
def test_a_message_that_waits_elsewhere_is_acknowledged_with_its_chunks(last: int | None) -> None:
    groups = ChunkGroups()
    for entry in range(3):
        groups.take(ref(entry), chunk(1, "m", entry, 3), 0)
    groups.acknowledged_within(1, 0, 1)
    groups.acknowledged_within(2, 0, 10**9)
    groups.acknowledged_up_to(Position(1, 1))
    assert not groups.done
    if last is None:
        groups.acknowledged_up_to(Position(1, 2))
    else:
        groups.acknowledged_within(1, 2, last)
    assert entries(groups.done) == [0, 1]
    assert not groups


def test_a_message_that_is_handed_over_before_it_is_read_is_whole_or_nothing() -> None:
    groups = ChunkGroups()
    last = chunk(1, "m", 2, 3)
    assert groups.whole(ref(5), None) == ref(5), "no chunk"
    assert groups.whole(ref(5), last) is None, "its beginning was not found"
    found = groups.whole(ref(5), last._replace(before=(ref(1), ref(3))))
    assert found is not None
    assert entries(found.chunks) == [1, 3]
    assert groups.whole(ref(5), None) == found, "it is remembered"
