"""How a consumer comes to a dispatcher and leaves it; the link is answered here."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pulsar_ray.client.acks.ack_sender import AckSender
from pulsar_ray.client.acks.ack_tracker import AckBatch
from pulsar_ray.client.acks.partition_acks import PartitionAcks, UnansweredRequests
from pulsar_ray.client.consumer.dispatcher_session import DispatcherSession
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import (
    AlreadyClosed,
    ConsumerBusy,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
)
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Acknowledge, Call, CloseEndpoint, OpenConsumer, Request
from pulsar_ray.transport.cluster import AttachReply
from tests.unit.client.answered_link import AnsweredLink

FIRST = AttachReply(1, 1, b"", 5, None, None, ("", ""), "/a", 1, {})
SAME_DISPATCHER = AttachReply(2, 1, b"", 5, None, None, ("", ""), "/a", 1, {})
OTHER_DISPATCHER = AttachReply(2, 1, b"", 6, None, None, ("", ""), "/a", 1, {})
ID = 7


class Consumer:
    """The owner of a session, to which nothing is delivered."""

    generation = 0
    awaited_consumer = (7, True)

    def __init__(self, link: Any) -> None:
        options, lock = ConsumerOptions(topic="t", subscription_name="s"), threading.Lock()
        self.requests = UnansweredRequests(link)
        self.ack_sender = AckSender(ID, PartitionAcks.stored(options, self.requests), self, options, lock)
        self.session = DispatcherSession(
            ID, self, self.requests, self.ack_sender, lambda request, body: None, lock
        )
        self.times_opened = 0
        self.errors: list[PulsarException] = []
        self.times_expired = 0
        self.times_replaced = 0

    def open_request(self, request_id: int) -> OpenConsumer:
        return OpenConsumer(request_id, ID, "c", 1, 0, 0, False, False, -1, 0, [], None, "s", 0)

    def opened(self, _opened: Any) -> None:
        self.requests.is_open = True
        self.times_opened += 1
        self.requests.send_all()

    def session_expired(self) -> None:
        self.times_expired += 1

    def partition_replaced(self, *, is_known: bool) -> None:
        self.times_replaced += not is_known

    def ended(self, error: PulsarException) -> None:
        self.errors.append(error)

    def credit_beside(self) -> Sequence[Buffer]:
        return ()

    def acknowledged(self, batch: AckBatch) -> None:
        """Nothing waits in a queue."""

    def received(self) -> tuple[int, int]:
        return 0, 0

    def arrived(self) -> tuple[int, tuple[int, int, int] | None]:
        return 0, None


def opened() -> tuple[AnsweredLink, Consumer]:
    """A consumer that is open, and its link, which answers nothing from now on."""
    link = AnsweredLink()
    consumer = Consumer(link)
    link.attached, link.answer = FIRST, lambda _: "opened"
    consumer.session.open(0.0)
    link.answer = None
    return link, consumer


def refusing(error: PulsarException) -> AnsweredLink:
    """A link to an actor that refuses whatever it is asked."""
    link = AnsweredLink()

    def refuse(_request: Request) -> None:
        if not link.asked:
            raise error

    link.answer = refuse
    return link


def test_it_is_an_endpoint_from_when_it_is_opened_until_it_is_refused() -> None:
    link, consumer = opened()
    assert link.endpoints == {ID: consumer.session}
    assert consumer.times_opened == 1
    error = SubscriptionNotFound("deleted")
    consumer.session.on_refused(error)
    assert consumer.errors == [error]
    assert not link.endpoints
    with pytest.raises(SubscriptionNotFound):
        consumer.session.control(1, "seek", {})


@pytest.mark.parametrize("error", [SubscriptionNotFound("removed"), AlreadyClosed("unsubscribed")])
def test_where_its_subscription_is_not_it_can_be_opened_through_another_link(error: PulsarException) -> None:
    link = refusing(error)
    consumer = Consumer(link)
    with pytest.raises(type(error)):
        consumer.session.open(0.0)
    assert not link.endpoints
    assert not consumer.session.is_abandoned
    assert not consumer.errors


def test_a_late_refusal_by_the_dispatcher_before_does_not_end_it() -> None:
    error = SubscriptionNotFound("removed")
    link = refusing(error)
    consumer = Consumer(link)
    with pytest.raises(SubscriptionNotFound):
        consumer.session.open(0.0)
    consumer.session.on_refused(error)
    later = AnsweredLink()
    later.attached, later.answer = FIRST, lambda _: "opened"
    later_link: Any = later
    consumer.session.attach_through(later_link)
    consumer.session.open(0.0)
    assert not consumer.errors
    assert not consumer.session.is_gone()
    assert later.endpoints == {ID: consumer.session}


def test_one_that_was_open_before_its_answer_ends_with_its_subscription() -> None:
    link = AnsweredLink()
    consumer = Consumer(link)
    error = SubscriptionNotFound("deleted", "/b")

    def opened_by_another_attachment_and_then_deleted(_request: Request) -> None:
        link.answer = lambda _: "opened"
        consumer.session.reopen(FIRST)
        raise error

    link.answer = opened_by_another_attachment_and_then_deleted
    consumer.session.open(0.0)
    assert consumer.times_opened == 1
    assert consumer.errors == [error]
    assert not link.endpoints
    assert not consumer.session.is_of("/b")


def test_who_failed_to_open_it_has_it_closed() -> None:
    link = refusing(ConsumerBusy("another one is open"))
    consumer = Consumer(link)
    with pytest.raises(ConsumerBusy):
        consumer.session.open(0.0)
    assert consumer.session.is_abandoned
    assert [request for request, _ in link.asked] == [CloseEndpoint(1, ID)]
    assert [event.is_set() for event in link.awaited] == [True]


@pytest.mark.parametrize(
    ("attached", "times_expired"), [(SAME_DISPATCHER, 1), (OTHER_DISPATCHER, 0), (FIRST, 0)]
)
def test_its_queue_is_others_only_where_a_dispatcher_that_goes_on_has_forgotten_its_session(
    attached: AttachReply, times_expired: int
) -> None:
    link, consumer = opened()
    consumer.session.on_detached()
    link.carrier = "second"
    consumer.session.reopen(attached)
    assert consumer.times_expired == times_expired
    link.asked[0][1]("opened", None)
    assert consumer.times_opened == 2


def test_a_dispatcher_that_could_not_just_now_is_asked_again() -> None:
    link, consumer = opened()
    consumer.session.on_detached()
    consumer.session.reopen(FIRST)
    link.asked[0][1](None, ServiceUnitNotReady("starting"))
    link.delayed.pop()()
    assert len(link.asked) == 2
    link.asked[1][1]("opened", None)
    assert consumer.requests.is_open


def test_it_leaves_behind_the_last_opening_and_then_opens_no_more() -> None:
    link, consumer = opened()

    def answer(request: Request) -> Any:
        if isinstance(request, CloseEndpoint) and len(link.asked) == 1:
            consumer.session.reopen(FIRST)  # just when it is being closed
        return "done"

    link.answer = answer
    consumer.session.leave(0.0)
    asked = [type(request) for request, _ in link.asked]
    # Answered here while they are sent, one to close might have overtaken the one to open: it is said again.
    assert asked == [CloseEndpoint, OpenConsumer, CloseEndpoint, CloseEndpoint]
    consumer.session.reopen(SAME_DISPATCHER)
    assert len(link.asked) == 4


def test_it_leaves_once_and_behind_what_it_acknowledged() -> None:
    link, consumer = opened()
    consumer.ack_sender.acks.add(1, 2)
    link.answer = lambda _: "done"
    for _ in range(2):
        consumer.session.leave(0.0)
        assert [type(request) for request, _ in link.asked] == [Acknowledge, CloseEndpoint]


def test_who_left_before_an_opening_was_asked_for_again_is_told() -> None:
    link = AnsweredLink()
    consumer = Consumer(link)
    link.answer = lambda _: "done"
    consumer.session.reopen(FIRST)  # by another attachment, while the first answer is lost
    consumer.session.leave(0.0)
    said = len(link.asked)
    with pytest.raises(AlreadyClosed):
        consumer.session.open(0.0)
    assert len(link.asked) == said
    assert not link.endpoints


def test_a_refused_one_need_not_leave() -> None:
    link, consumer = opened()
    consumer.session.on_refused(SubscriptionNotFound("deleted"))
    consumer.session.leave(0.0)
    assert not link.asked


def test_who_is_refused_once_it_has_unsubscribed_was_heard() -> None:
    link, consumer = opened()

    def answer(request: Request) -> Any:
        assert isinstance(request, Call)
        consumer.session.on_refused(SubscriptionNotFound("deleted"))
        raise SubscriptionNotFound("deleted")

    link.answer = answer
    consumer.session.unsubscribe(0.0)
    assert consumer.session.refusal is not None


def test_an_abandoned_one_says_nothing_more() -> None:
    link, consumer = opened()
    consumer.ack_sender.acks.add(1, 2)
    said = consumer.ack_sender.send_durably()
    consumer.session.abandon()
    assert not link.endpoints
    assert said[0].answered.is_set()
    assert not consumer.requests.is_open


@pytest.mark.parametrize(("directory", "expected"), [(None, True), ("/a", True), ("/b", False)])
def test_it_is_of_the_partition_it_was_open_on(directory: str | None, expected: bool) -> None:
    _, consumer = opened()
    assert consumer.session.is_of(directory) is expected


def parked() -> tuple[AnsweredLink, Consumer]:
    """A consumer whose dispatcher has gone to sleep."""
    link, consumer = opened()
    consumer.session.on_detached()
    link.is_parked = True
    return link, consumer


def test_a_consumer_that_has_nothing_to_send_needs_no_dispatcher() -> None:
    link, consumer = parked()
    assert not consumer.session.needs_actor
    consumer.session.close(0.0, None)
    assert [bool(link.asked), bool(link.endpoints), link.is_woken] == [False] * 3
    assert link.left == [(7, True)], "its successor need not wait for it"
    consumer.session.reopen(OTHER_DISPATCHER)
    assert not link.asked, "an attachment that comes now opens it no more"


def test_acknowledgments_need_the_dispatcher() -> None:
    link, consumer = parked()
    consumer.ack_sender.acks.add(3, 5)
    assert consumer.session.needs_actor
    consumer.ack_sender.flush()
    assert link.is_woken


def test_a_dispatcher_that_slept_before_it_had_opened_the_consumer_is_needed() -> None:
    _, consumer = parked()
    consumer.session.reopen(OTHER_DISPATCHER)
    consumer.session.on_detached()
    assert consumer.session.needs_actor


def test_another_partition_of_the_name_is_told_from_the_former_one() -> None:
    _, consumer = opened()
    consumer.session.reopen(dataclasses.replace(FIRST, attachment=2))
    assert consumer.times_replaced == 0
    consumer.session.reopen(dataclasses.replace(FIRST, attachment=3, directory="/another"))
    consumer.session.reopen(dataclasses.replace(FIRST, attachment=4, directory="/another"))
    assert consumer.times_replaced == 1
