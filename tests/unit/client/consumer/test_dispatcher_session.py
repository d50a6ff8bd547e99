"""How a consumer comes to a dispatcher and leaves it; the link is answered here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

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


class Consumer(DispatcherSession):
    """Nothing is delivered to it."""

    def __init__(self, link: Any, *, is_durable: bool = True) -> None:
        super().__init__(link, ID, ConsumerOptions(topic="t", subscription_name="s"), threading.Lock())
        self.start = None if is_durable else {"target": "latest", "inclusive": False}
        self.opened_at: list[AttachReply | None] = []
        self.ended: list[PulsarException] = []
        self.given_up = 0

    def _open_request(self, request_id: int) -> OpenConsumer:
        return OpenConsumer(request_id, ID, "c", 1, 0, 0, False, False, -1, 0, [], self.start, "s", 0)

    def _opened(self, _opened: Any, attached: AttachReply | None) -> None:
        self._attached = attached
        self._is_open = True
        self.opened_at.append(attached)
        self._statements.send_all()

    def _give_up_queue(self) -> None:
        self.given_up += 1

    def _end(self, error: PulsarException) -> None:
        self.ended.append(error)

    def on_request(self, request: Any, body: memoryview) -> None:
        """Nothing comes."""

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Nothing is sent."""

    def credit_beside(self) -> Sequence[Buffer]:
        return ()

    def received(self) -> tuple[int, int]:
        return 0, 0

    def arrived(self) -> tuple[int, tuple[int, int, int] | None]:
        return 0, None


def opened(*, is_durable: bool = True) -> tuple[AnsweredLink, Consumer]:
    """A consumer that is open, and its link, which answers nothing from now on."""
    link = AnsweredLink()
    consumer = Consumer(link, is_durable=is_durable)
    link.attached, link.answer = FIRST, lambda _: "opened"
    consumer.open(0.0)
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
    assert link.endpoints == {ID: consumer}
    assert consumer.opened_at == [FIRST]
    error = SubscriptionNotFound("deleted")
    consumer.on_refused(error)
    assert consumer.ended == [error]
    assert not link.endpoints
    with pytest.raises(SubscriptionNotFound):
        consumer.control(1, "seek", {})


@pytest.mark.parametrize("error", [SubscriptionNotFound("removed"), AlreadyClosed("unsubscribed")])
def test_where_its_subscription_is_not_it_can_be_opened_through_another_link(error: PulsarException) -> None:
    link = refusing(error)
    consumer = Consumer(link)
    with pytest.raises(type(error)):
        consumer.open(0.0)
    assert not link.endpoints
    assert not consumer.is_abandoned
    assert not consumer.ended


def test_who_failed_to_open_it_has_it_closed() -> None:
    link = refusing(ConsumerBusy("another one is open"))
    consumer = Consumer(link)
    with pytest.raises(ConsumerBusy):
        consumer.open(0.0)
    assert consumer.is_abandoned
    assert [request for request, _ in link.asked] == [CloseEndpoint(1, ID)]
    assert [event.is_set() for event in link.awaited] == [True]


@pytest.mark.parametrize(
    ("is_durable", "attached", "given_up"),
    [(True, SAME_DISPATCHER, 1), (True, OTHER_DISPATCHER, 0), (True, FIRST, 0), (False, SAME_DISPATCHER, 0)],
)
def test_its_queue_is_others_only_where_a_dispatcher_that_goes_on_has_forgotten_its_session(
    is_durable: bool, attached: AttachReply, given_up: int
) -> None:
    link, consumer = opened(is_durable=is_durable)
    consumer.on_detached()
    link.carrier = "second"
    consumer.reopen(attached)
    assert consumer.given_up == given_up
    link.asked[0][1]("opened", None)
    assert consumer.opened_at == [FIRST, attached]


def test_a_dispatcher_that_could_not_just_now_is_asked_again() -> None:
    link, consumer = opened()
    consumer.on_detached()
    consumer.reopen(FIRST)
    link.asked[0][1](None, ServiceUnitNotReady("starting"))
    link.delayed.pop()()
    assert len(link.asked) == 2
    link.asked[1][1]("opened", None)
    assert consumer.is_connected


def test_it_leaves_behind_the_last_opening_and_then_opens_no_more() -> None:
    link, consumer = opened()

    def answer(request: Request) -> Any:
        if isinstance(request, CloseEndpoint) and len(link.asked) == 1:
            consumer.reopen(FIRST)  # just when it is being closed
        return "done"

    link.answer = answer
    consumer.leave(0.0)
    asked = [type(request) for request, _ in link.asked]
    # Answered here while they are sent, one to close might have overtaken the one to open: it is said again.
    assert asked == [CloseEndpoint, OpenConsumer, CloseEndpoint, CloseEndpoint]
    consumer.reopen(SAME_DISPATCHER)
    assert len(link.asked) == 4


def test_it_leaves_once_and_behind_what_it_acknowledged() -> None:
    link, consumer = opened()
    consumer.acks.add(1, 2)
    link.answer = lambda _: "done"
    for _ in range(2):
        consumer.leave(0.0)
        assert [type(request) for request, _ in link.asked] == [Acknowledge, CloseEndpoint]


def test_who_left_before_an_opening_was_asked_for_again_is_told() -> None:
    link = AnsweredLink()
    consumer = Consumer(link)
    link.answer = lambda _: "done"
    consumer.reopen(FIRST)  # by another attachment, while the first answer is lost
    consumer.leave(0.0)
    said = len(link.asked)
    with pytest.raises(AlreadyClosed):
        consumer.open(0.0)
    assert len(link.asked) == said
    assert not link.endpoints


def test_a_refused_one_need_not_leave() -> None:
    link, consumer = opened()
    consumer.on_refused(SubscriptionNotFound("deleted"))
    consumer.leave(0.0)
    assert not link.asked


def test_who_is_refused_once_it_has_unsubscribed_was_heard() -> None:
    link, consumer = opened()

    def answer(request: Request) -> Any:
        assert isinstance(request, Call)
        consumer.on_refused(SubscriptionNotFound("deleted"))
        raise SubscriptionNotFound("deleted")

    link.answer = answer
    consumer.unsubscribe(0.0)
    assert consumer.refusal is not None


def test_an_abandoned_one_says_nothing_more() -> None:
    link, consumer = opened()
    consumer.acks.add(1, 2)
    said = consumer.say_durably()
    consumer.abandon()
    assert not link.endpoints
    assert said[0].answered.is_set()
    assert not consumer.is_connected


@pytest.mark.parametrize(("directory", "expected"), [(None, True), ("/a", True), ("/b", False)])
def test_it_is_of_the_partition_it_was_open_on(directory: str | None, expected: bool) -> None:
    _, consumer = opened()
    assert consumer.is_of(directory) is expected
