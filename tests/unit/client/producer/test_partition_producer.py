"""How a producer comes to a partition and leaves it; the test is the partition."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.client.producer.send_state import SILENCE_S
from pulsar_ray.errors import (
    AlreadyClosed,
    DiskSpaceLow,
    IncarnationForgotten,
    ProducerBusy,
    PulsarException,
    ServiceUnitNotReady,
    SessionLost,
    Timeout,
    TopicNotFound,
    WrongNode,
)
from pulsar_ray.session.requests import CloseEndpoint, OpenProducer, PublishFailed, Request
from pulsar_ray.transport.cluster import PartitionRoute
from tests.unit.client.producer.publishing_link import ATTACHED, PublishingLink, opened, receipts

ID = 7
ROUTE = PartitionRoute("persistent://public/default/t", 0, "actor")


def producer_on(link: PublishingLink, **options: Any) -> PartitionProducer:
    return PartitionProducer(link, ID, ROUTE, ProducerOptions(topic="t", **options))


def open_producer(**options: Any) -> tuple[PublishingLink, PartitionProducer]:
    """A producer that is open, and its link, which answers nothing from now on."""
    link = PublishingLink()
    link.carrier, link.answer = "first", lambda _: opened()
    producer = producer_on(link, **options)
    producer.open(0.0)
    link.answer = None
    link.asked.clear()
    return link, producer


def last_asked(link: PublishingLink) -> Any:
    return link.asked[-1][0]


class Failures(ErrorCallback):
    """Keeps the errors of sends."""

    def __init__(self) -> None:
        self.came: list[PulsarException] = []

    def failed(self, error: PulsarException) -> None:
        self.came.append(error)


class Results:
    """Keeps the results of sends."""

    def __init__(self) -> None:
        self.came: list[Any] = []

    def __call__(self, result: Any, _message_id: Any) -> None:
        self.came.append(result)


def test_opened_it_is_an_endpoint_that_writes() -> None:
    link, producer = open_producer()
    assert link.endpoints == {ID: producer}
    assert not producer.awaits_packets
    producer.queue.enqueue(b"a", None)
    assert link.seqs("first") == [0]
    assert producer.awaits_packets


def test_a_producer_that_could_not_be_opened_has_itself_closed() -> None:
    link = PublishingLink()
    link.carrier = "first"

    def refuse(request: Request) -> Any:
        if isinstance(request, OpenProducer):
            raise ProducerBusy("another one has the name")
        return None

    link.answer = refuse
    with pytest.raises(ProducerBusy):
        producer_on(link).open(0.0)
    assert isinstance(last_asked(link), CloseEndpoint)
    assert not link.endpoints


def test_a_lost_answer_to_the_first_opening_is_asked_for_again() -> None:
    link = PublishingLink()
    link.carrier = "first"
    answers: list[PulsarException] = [SessionLost("cut"), SessionLost("cut")]

    def answer(_request: Request) -> Any:
        if answers:
            raise answers.pop()
        return opened()

    link.answer = answer
    producer = producer_on(link)
    producer.open(0.0)
    requests = [request for request, _ in link.asked]
    assert len(requests) == 3
    assert {(r.incarnation, r.first_pending_seq) for r in requests if isinstance(r, OpenProducer)} == {
        (requests[0].incarnation, 0)  # type: ignore[union-attr]
    }
    assert producer.is_connected


def test_behind_each_attachment_it_opens_as_the_same_and_writes_again() -> None:
    link, producer = open_producer()
    producer.queue.enqueue(b"a", None)
    producer.queue.enqueue(b"b", None)
    producer.on_receipts(receipts(0, producer_id=ID))
    before = producer.queue.opening_numbers()
    link.lose()
    assert not producer.is_connected
    link.attach("second")
    request = last_asked(link)
    assert (request.incarnation, request.replaces_incarnation, request.first_pending_seq) == before
    assert request.first_pending_seq == 1
    assert link.seqs("second") == []  # not before it is open there
    link.asked[-1][1](opened(), None)
    assert link.seqs("second") == [1]


def test_an_answer_that_is_lost_with_its_carrier_leaves_it_closed_until_the_next_one() -> None:
    link, producer = open_producer()
    link.lose()
    link.attach("second")
    reply = link.asked[-1][1]
    link.lose()
    reply(opened(), None)  # the answer was read already when the carrier was lost
    assert not producer.is_connected
    link.attach("third")
    link.asked[-1][1](opened(), None)
    assert producer.is_connected


def test_an_actor_that_could_not_just_now_is_asked_again_soon() -> None:
    link, producer = open_producer(send_timeout_millis=0)
    link.lose()
    link.attach("second")
    link.asked[-1][1](None, ServiceUnitNotReady("starting"))
    assert len(link.asked) == 1
    link.manual_timers.run()
    assert len(link.asked) == 2
    link.asked[-1][1](opened(), None)
    assert producer.is_connected


def test_what_was_on_its_way_to_a_topic_that_another_one_replaced_says_so() -> None:
    link, producer = open_producer()
    failures = Failures()
    producer.queue.enqueue(b"a", failures)
    link.lose()
    link.attach("second", directory="/another")
    link.asked[-1][1](None, IncarnationForgotten("not remembered"))
    (error,) = failures.came
    assert isinstance(error, TopicNotFound)
    assert "was deleted while this message was on its way" in error.text
    link.asked[-1][1](opened(), None)
    producer.queue.enqueue(b"b", Results())
    assert link.seqs("second") == [0], "it goes on there"


def test_forgotten_it_fails_its_sends_and_opens_as_another_one() -> None:
    link, producer = open_producer()
    results = Results()
    producer.queue.enqueue(b"a", results)
    link.lose()
    link.attach("second")
    fenced = last_asked(link)
    link.asked[-1][1](None, IncarnationForgotten("given up"))
    assert results.came == [IncarnationForgotten("").result]
    request = last_asked(link)
    assert request.replaces_incarnation == fenced.incarnation != request.incarnation
    assert request.first_pending_seq == 0
    link.asked[-1][1](opened(), None)
    producer.queue.enqueue(b"b", results)
    assert link.seqs("second") == [0]


@pytest.mark.parametrize("how", ["on_refused", "answer"])
def test_a_final_refusal_ends_it(how: str) -> None:
    link, producer = open_producer()
    results = Results()
    producer.queue.enqueue(b"a", results)
    link.lose()
    if how == "on_refused":
        producer.on_refused(TopicNotFound("deleted"))
    else:
        link.attach("second")
        link.asked[-1][1](None, TopicNotFound("deleted"))
    assert results.came == [TopicNotFound("").result]
    with pytest.raises(TopicNotFound):
        producer.queue.enqueue(b"b", None)
    asked = len(link.asked)
    link.attach("third")
    producer.close(0.0)
    assert len(link.asked) == asked  # nothing is left to be closed


def test_a_refused_block_fails_and_the_producer_goes_on() -> None:
    _link, producer = open_producer()
    results = Results()
    producer.queue.enqueue(b"a", results)
    producer.on_request(PublishFailed(ID, 0, "DiskSpaceLow", "full"), memoryview(b""))
    assert results.came == [DiskSpaceLow("").result]
    assert producer.is_connected


def test_without_receipts_in_time_everything_fails_and_a_new_incarnation_is_opened() -> None:
    link, producer = open_producer(send_timeout_millis=1)
    results = Results()
    old = producer.queue.opening_numbers()[0]
    producer.queue.enqueue(b"a", results)
    threading.Event().wait(0.01)  # longer than the timeout
    link.manual_timers.run()
    assert results.came == [Timeout("").result]
    assert last_asked(link).replaces_incarnation == old
    assert not producer.is_connected
    link.asked[-1][1](opened(), None)
    assert producer.is_connected


def test_closing_waits_for_receipts_and_then_for_the_answer() -> None:
    link, producer = open_producer()
    results = Results()
    producer.queue.enqueue(b"a", results)

    def wait(event: Any, _deadline: float) -> bool:
        if producer.awaits_packets:
            producer.on_receipts(receipts(0, producer_id=ID))
        return bool(event.is_set())

    link.wait = wait  # type: ignore[method-assign]
    link.answer = lambda _: None
    producer.close(0.0)
    assert len(results.came) == 1
    assert [type(request) for request, _ in link.asked] == [CloseEndpoint]
    assert not link.endpoints
    with pytest.raises(AlreadyClosed):
        producer.queue.enqueue(b"b", None)


def test_closing_without_receipts_fails_the_sends_and_says_that_the_producer_closes() -> None:
    link, producer = open_producer()
    results = Results()
    producer.queue.enqueue(b"a", results)
    with pytest.raises(Timeout):
        producer.close(0.0)
    assert results.came == [AlreadyClosed("").result]
    assert isinstance(last_asked(link), CloseEndpoint)


def test_closing_while_a_send_waits_for_room_ends_the_send() -> None:
    _link, producer = open_producer(max_pending_messages=1, block_if_queue_full=True)
    producer.queue.enqueue(b"a", None)
    raised: list[BaseException] = []

    def send() -> None:
        try:
            producer.queue.enqueue(b"b", None)
        except PulsarException as error:
            raised.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    while not producer.queue.waiting:
        sending.join(0.01)
    with pytest.raises(Timeout):
        producer.close(0.0)
    sending.join(20)
    assert [type(error) for error in raised] == [AlreadyClosed]


def test_a_close_that_crosses_an_opening_is_repeated_behind_it() -> None:
    link, producer = open_producer()
    link.lose()
    link.attach("second")  # asks to open; the answer is still to come
    opening = link.asked[-1]

    def answer(request: Request) -> Any:
        # Another attachment asks to open just when the producer is being closed.
        if isinstance(request, CloseEndpoint) and len(link.asked) == 2:
            producer._pending_close._opens_begun += 1
            producer._pending_close._opens_sent += 1
        return None

    link.answer = answer
    producer.close(0.0)
    opening[1](opened(), None)
    assert [type(request) for request, _ in link.asked] == [OpenProducer, CloseEndpoint, CloseEndpoint]
    assert not producer.is_connected


def test_a_partition_that_is_away_takes_nothing_until_it_is_back() -> None:
    link = PublishingLink()
    producer = producer_on(link)
    producer.open_when_back(WrongNode("its node is away"))
    assert link.begins_to_attach == 1
    with pytest.raises(WrongNode):
        producer.queue.enqueue(b"a", None)
    link.attach("first")
    link.asked[-1][1](opened("named"), None)
    producer.queue.enqueue(b"a", None)
    assert producer.queue.state.producer_name == "named"
    assert link.seqs("first") == [0]


def test_a_producer_reopened_while_it_was_opened_elsewhere_writes_only_on_the_carrier_that_stands() -> None:
    link, producer = open_producer()
    producer.queue.enqueue(b"a", None)
    link.lose()
    link.attach("second")
    second = link.asked[-1][1]
    link.carrier = None
    producer.on_detached()
    link.attach("third")
    third = link.asked[-1][1]
    second(opened(), None)  # late, by another thread
    assert not producer.is_connected
    third(opened(), None)
    assert [carrier for carrier, _ in link.written] == ["first", "third"]


def parked_producer(**options: Any) -> tuple[PublishingLink, PartitionProducer]:
    link, producer = open_producer(**options)
    link.carrier, link.is_parked = None, True
    producer.on_detached()
    return link, producer


@pytest.mark.parametrize("batching", [False, True])
def test_a_message_wakes_the_partition_that_sleeps(batching: bool) -> None:
    link, producer = parked_producer(batching_enabled=batching)
    assert not producer.needs_actor
    assert producer.is_connected
    assert producer.takes_keyless
    producer.queue.enqueue(b"x", None)
    needs = producer.needs_actor
    assert (needs, link.begins_to_attach) == (True, 1)
    producer.queue.enqueue(b"y", None)
    assert link.begins_to_attach == 1


def test_a_look_at_the_size_and_a_whole_block_wake_too() -> None:
    link, producer = parked_producer()
    producer.queue.check_size(10)
    assert link.begins_to_attach == 1
    link, producer = parked_producer()
    producer.queue.add_block(lambda *_: [b""], entries=1, messages=1, size=1, done=lambda *_: None)
    assert link.begins_to_attach == 1


@pytest.mark.parametrize(("silence_s", "is_new"), [(0.0, False), (SILENCE_S + 1, True)])
def test_one_that_was_parked_for_long_counts_anew(silence_s: float, is_new: bool) -> None:
    """Its partition may have been awake for others, and have forgotten where it was."""
    link, producer = open_producer()
    producer.queue.enqueue(b"x", None)
    producer.on_receipts(receipts(0, producer_id=ID))
    former = producer.queue.opening_numbers()
    link.carrier, link.is_parked = None, True
    producer.on_detached()
    producer.queue.state.closed_at_s -= silence_s
    producer.queue.enqueue(b"y", None)
    incarnation, replaces, first_seq = producer.queue.opening_numbers()
    assert (incarnation != former[0], replaces, first_seq) == (is_new, 0, 0 if is_new else 1)


def test_closing_a_producer_whose_partition_sleeps_asks_nobody() -> None:
    link, producer = parked_producer()
    producer.close(0.0)
    assert [len(link.asked), len(link.endpoints), link.begins_to_attach] == [0, 0, 0]
    assert not producer.is_connected
    producer.reopen(ATTACHED)
    assert not link.asked, "an attachment that comes now opens it no more"
