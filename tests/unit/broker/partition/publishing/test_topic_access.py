"""Which producers may be at a partition together, wait, or are evicted."""

from __future__ import annotations

import itertools

import pytest

from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint, SessionOutcomes
from pulsar_ray.broker.partition.publishing.topic_access import TopicAccess
from pulsar_ray.errors import ProducerBusy, ProducerFenced
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.packet_encoders import PacketEncoder
from pulsar_ray.session.requests import NO_EPOCH, OpenProducer, Receipt
from pulsar_ray.session.session_table import Session

SHARED = ProducerAccessMode.Shared
EXCLUSIVE = ProducerAccessMode.Exclusive
FENCING = ProducerAccessMode.ExclusiveWithFencing
WAITING = ProducerAccessMode.WaitForExclusive
SESSION = Session(1, "client", 0)
OUTCOMES = SessionOutcomes(SESSION, PacketEncoder(Receipt))
_INCARNATIONS = itertools.count(1)


def request(
    mode: ProducerAccessMode, *, epoch: int = NO_EPOCH, incarnation: int = 0, was_open: bool = False
) -> OpenProducer:
    incarnation = incarnation or next(_INCARNATIONS)
    return OpenProducer(
        1, 1, None, incarnation, 0, 0, int(mode), False, None, was_open or epoch > NO_EPOCH, epoch
    )


def present(incarnation: int) -> ProducerEndpoint:
    return ProducerEndpoint(SESSION, OUTCOMES, 1, f"p{incarnation}", incarnation, 0, IncomingTraffic(0), 0)


def held(epoch: int = 4, holder: int = 1000) -> tuple[TopicAccess, ProducerEndpoint]:
    access = TopicAccess(epoch - 1, is_awaited=False)
    access.take(holder, epoch)
    return access, present(holder)


def test_an_empty_topic_is_open_to_everybody_and_its_epoch_rises() -> None:
    access = TopicAccess(NO_EPOCH, is_awaited=False)
    for mode in ProducerAccessMode:
        admitted = access.decide(request(mode), [])
        assert admitted is not None
        assert admitted.epoch == (NO_EPOCH if mode == SHARED else 0)


def test_shared_producers_keep_out_who_wants_the_topic_for_itself() -> None:
    access = TopicAccess(2, is_awaited=False)
    others = [present(50), present(51)]
    assert access.decide(request(SHARED), others) == (NO_EPOCH, ())
    with pytest.raises(ProducerFenced):
        access.decide(request(EXCLUSIVE), others)
    assert access.decide(request(WAITING), others) is None
    assert access.decide(request(FENCING), others) == (3, others)


def test_a_holder_keeps_out_all_but_who_fences() -> None:
    access, holder = held()
    with pytest.raises(ProducerBusy):
        access.decide(request(SHARED), [holder])
    with pytest.raises(ProducerFenced):
        access.decide(request(SHARED, was_open=True), [holder])
    with pytest.raises(ProducerFenced):
        access.decide(request(EXCLUSIVE), [holder])
    assert access.decide(request(WAITING), [holder]) is None
    assert access.decide(request(FENCING), [holder]) == (5, [holder])


@pytest.mark.parametrize("mode", list(ProducerAccessMode))
def test_a_repeated_request_of_who_is_there_changes_nothing(mode: ProducerAccessMode) -> None:
    access, holder = held(4, 1000)
    assert access.decide(request(mode, incarnation=1000), [holder]) == (4, ())
    shared = TopicAccess(4, is_awaited=False)
    assert shared.decide(request(SHARED, incarnation=7), [present(7), present(8)]) == (NO_EPOCH, ())


@pytest.mark.parametrize("mode", [EXCLUSIVE, FENCING, WAITING])
def test_a_lower_epoch_is_fenced_and_the_same_one_comes_back(mode: ProducerAccessMode) -> None:
    access = TopicAccess(4, is_awaited=True)
    with pytest.raises(ProducerFenced, match="since topic epoch 4"):
        access.decide(request(mode, epoch=3), [])
    assert access.decide(request(mode, epoch=4), []) == (4, [])
    if mode == FENCING:
        assert access.decide(request(mode, epoch=4), [present(5)])[1] != []  # type: ignore[index]
    else:
        with pytest.raises(ProducerFenced):
            access.decide(request(mode, epoch=4), [present(5)])


def test_those_that_wait_keep_their_order_and_others_out() -> None:
    access = TopicAccess(0, is_awaited=False)
    first, second = request(WAITING), request(WAITING)
    access.wait(SESSION, first)
    access.wait(SESSION, second._replace(producer_id=2))
    access.wait(SESSION, first._replace(request_id=9))
    assert [waiting.request.request_id for waiting in access.waiting] == [9, 1]
    with pytest.raises(ProducerBusy):
        access.decide(request(SHARED), [])
    with pytest.raises(ProducerFenced):
        access.decide(request(EXCLUSIVE), [])
    assert access.decide(second, []) is None
    access.stop_waiting(SESSION, 1)
    assert access.decide(second, []) == (1, ())
    access.stop_waiting(SESSION)
    assert not access.waiting


def test_only_the_holder_gives_the_topic_back() -> None:
    access, _ = held(4, 1000)
    assert not access.release(999)
    assert access.release(1000)
    assert not access.release(1000)
    assert access.decide(request(SHARED), []) == (NO_EPOCH, ())
