"""Which producers wait for those that were connected before their partition's restart."""

from __future__ import annotations

import itertools

import pytest

from pulsar_ray.broker.partition.publishing.producer_opening import ReturningProducers
from pulsar_ray.broker.partition.publishing.producers_note import KnownProducer
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.session.requests import OpenProducer
from pulsar_ray.session.session_table import Session

SHARED = ProducerAccessMode.Shared
EXCLUSIVE = ProducerAccessMode.Exclusive
FENCING = ProducerAccessMode.ExclusiveWithFencing
WAITING = ProducerAccessMode.WaitForExclusive
NO_LIMIT = 0


def request(
    name: str | None,
    incarnation: int = 99,
    *,
    mode: ProducerAccessMode = SHARED,
    replaces: int = 0,
    was_open: bool = False,
    producer_id: int = 1,
) -> OpenProducer:
    return OpenProducer(
        1, producer_id, name, incarnation, replaces, 0, int(mode), name is not None, None, was_open
    )


def returning(*names: str) -> ReturningProducers:
    """Producers of incarnations 1, 2, ... from a client each, with the same id there."""
    return ReturningProducers(
        {name: KnownProducer(number, f"client {number}", 5) for number, name in enumerate(names, 1)}
    )


def test_a_name_is_kept_for_its_producer() -> None:
    awaited = returning("x", "y")
    assert awaited.keeps_out(request("x"), (), NO_LIMIT)
    assert not awaited.keeps_out(request("z"), (), NO_LIMIT)
    assert not awaited.keeps_out(request(None), (), NO_LIMIT)
    assert not awaited.keeps_out(request("x", 1), (), NO_LIMIT)
    assert not awaited.keeps_out(request("x", replaces=1), (), NO_LIMIT)
    assert awaited.keeps_out(request("x", 2), (), NO_LIMIT)


def test_who_was_open_waits_for_nobody() -> None:
    for mode in ProducerAccessMode:
        assert not returning("x", "y").keeps_out(request("x", mode=mode, was_open=True), ("z",), 1)


def test_nobody_has_the_topic_alone_before_all_are_back_but_by_force() -> None:
    awaited = returning("x")
    for mode in (EXCLUSIVE, WAITING):
        assert awaited.keeps_out(request("z", mode=mode), (), NO_LIMIT)
        assert not awaited.keeps_out(request("x", 1, mode=mode), (), NO_LIMIT)
    for name in ("x", "z", None):
        assert not awaited.keeps_out(request(name, mode=FENCING), (), 1)


@pytest.mark.parametrize("limit", range(6))
def test_limited_places_are_kept(limit: int) -> None:
    """One too many is not to wait: it is refused by those that are there."""
    names = ["a", "b", "c"]
    for back in range(len(names) + 1):
        awaited = returning(*names)
        for name in names[:back]:
            assert awaited.came_back(name)
        present = names[:back]
        expected = bool(limit) and len(present) < limit <= len(names) and back < len(names)
        assert awaited.keeps_out(request("new"), present, limit) == expected
        assert not awaited.keeps_out(request("a", 1), present, limit)


def test_waiting_ends_with_the_return_the_close_or_the_grace_period() -> None:
    for end in range(3):
        awaited = returning("x", "y")
        awaited.came_back("y")
        if end == 0:
            assert awaited.came_back("x")
            assert not awaited.came_back("x")
        elif end == 1:
            assert awaited.left("client 2", 5) is None
            assert awaited.left("client 1", 4) is None
            assert awaited.left("client 1", 5) == "x"
            assert awaited.left("client 1", 5) is None
        else:
            assert awaited.stop_awaiting() == ["x"]
        assert not awaited.are_awaited
        assert not awaited.keeps_out(request("x", mode=EXCLUSIVE), (), 1)


def test_those_that_wait_keep_their_order_and_leave_alone_or_with_their_session() -> None:
    sessions = [Session(number, f"client {number}", 0) for number in range(2)]
    awaited = returning("x")
    for session, producer_id in itertools.product(sessions, (1, 2, 3)):
        awaited.wait(session, request("x", producer_id=producer_id))
    again = request("x", 7, producer_id=1)
    awaited.wait(sessions[0], again)
    awaited.leave(sessions[0], 2)
    awaited.leave(sessions[1])
    assert awaited.waiting == 2
    taken = awaited.take_waiting()
    assert [(w.session, w.request.producer_id) for w in taken] == [(sessions[0], 1), (sessions[0], 3)]
    assert taken[0].request is again
    assert not awaited.waiting
