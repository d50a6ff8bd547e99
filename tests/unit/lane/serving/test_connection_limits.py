from __future__ import annotations

import random

from pulsar_ray.lane.serving.server import ConnectionLimits, UnprovenConnections

ROOM = ConnectionLimits(proven=100, unproven=6, unproven_of_peer=3)


def test_the_oldest_of_a_peer_goes_first() -> None:
    unproven: UnprovenConnections[str] = UnprovenConnections(ROOM)
    assert unproven.add("other", "b") is None
    assert [unproven.add(name, "a") for name in "xyzuv"] == [None, None, None, "x", "y"]
    assert len(unproven) == 4


def test_the_oldest_of_all_goes_when_there_are_too_many() -> None:
    unproven: UnprovenConnections[int] = UnprovenConnections(ROOM)
    assert [unproven.add(number, f"peer {number}") for number in range(8)] == [None] * 6 + [0, 1]


def test_a_proven_connection_makes_room() -> None:
    unproven: UnprovenConnections[int] = UnprovenConnections(ROOM)
    for number in range(1000):
        assert unproven.add(number, "a") is None
        unproven.remove(number)
        unproven.remove(number)
    assert len(unproven) == 0


def test_never_more_than_the_room_has_whatever_comes_and_goes() -> None:
    choose = random.Random(1)
    unproven: UnprovenConnections[int] = UnprovenConnections(ROOM)
    there: dict[int, int] = {}
    for number in range(3000):
        if there and choose.random() < 0.4:
            gone = choose.choice(list(there))
            del there[gone]
            unproven.remove(gone)
        there[number] = choose.randrange(4)
        dropped = unproven.add(number, there[number])
        if dropped is not None:
            del there[dropped]
        assert len(unproven) == len(there) <= ROOM.unproven
        assert max(list(there.values()).count(peer) for peer in range(4)) <= ROOM.unproven_of_peer


def test_files_are_left_for_data_whatever_the_limit() -> None:
    for limit in (64, 256, 1024, 4096, 65_536, 1 << 20):
        room = ConnectionLimits.of(limit)
        assert 2 * room.proven + room.unproven <= limit // 2
        assert room.unproven_of_peer < room.unproven
    assert ConnectionLimits.of(1024).proven == 192
