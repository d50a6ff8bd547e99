"""A consumer's parts on one partition work together; the dispatcher is played here."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.receiver_queue import QueuedDelivery
from pulsar_ray.errors import SessionLost, SubscriptionNotFound, Timeout
from pulsar_ray.lane.progress_page import CounterView
from pulsar_ray.model.enums import ConsumerType, SubscriptionMode
from pulsar_ray.model.message_id import after_seeks
from pulsar_ray.session.requests import (
    Acknowledge,
    Call,
    CloseEndpoint,
    ConsumerOpened,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    Reset,
)
from pulsar_ray.transport.cluster import AttachReply
from tests.unit.client.consumer.delivering import (
    EPOCH,
    LEDGER,
    UNSTORED_TOPIC,
    DispatcherLink,
    core_of,
    deliver,
    open_partition,
)

WAIT_S = 20.0
OTHER_SESSION = AttachReply(2, 1, b"", EPOCH, None, None, ("", ""), "/a", 1, {})


def test_an_open_consumer_gives_credit_for_its_whole_queue() -> None:
    _, link = open_partition(core_of(receiver_queue_size=10))
    assert link.credits == [10]


def test_credit_is_given_back_when_half_of_the_queue_was_consumed() -> None:
    core = core_of(receiver_queue_size=4)
    partition, link = open_partition(core)
    for number in range(1, 5):
        deliver(partition, number, b"m")
    core.receive(0.0)
    assert link.credits == [4]
    core.receive(0.0)
    assert link.credits == [4, 6]


def test_what_is_declared_at_a_new_dispatcher_is_what_was_delivered_and_is_not_acknowledged() -> None:
    partition, link = open_partition(core_of())
    deliver(partition, 1, b"a")
    deliver(partition, 2, b"b")
    with partition._owner.lock:
        partition.ack_sender.acks.add(LEDGER, 0)
    partition.ack_sender.flush()
    assert len(partition.ack_sender.unacked) == 2, "it is not confirmed yet"
    (acknowledge,) = link.answer_all()
    assert isinstance(acknowledge, Acknowledge)
    request = partition.open_request(9)
    assert [tuple(held[:2]) for held in request.held] == [(LEDGER, 1)]
    assert request.received == 2


def test_deliveries_that_were_seen_or_are_void_are_dropped() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a")
    deliver(partition, 1, b"a")
    assert core.receive(0.0).data() == b"a"
    assert not core.has_received()
    deliver(partition, 2, b"b", generation=1)
    deliver(partition, 3, b"c", generation=0)
    deliver(partition, 3, b"d", generation=1, epoch=EPOCH - 1)
    assert core.receive(0.0).data() == b"b"
    assert not core.has_received()


def test_a_seek_drops_what_is_queued_and_the_acknowledgments_before_it() -> None:
    core = core_of()
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    with core.lock:
        partition.ack_sender.acks.add(LEDGER, 0)
    waiting = partition.ack_sender.send_durably()
    partition.session.on_request(
        Reset(1, after_seeks(1), is_seek=True, last_number=1, granted=1), memoryview(b"")
    )
    assert waiting[0].answered.is_set(), "a thread that waits for it goes on"
    assert not core.has_received()
    assert partition.deliveries.count.consumed == 1
    partition.requests.send_all()
    assert [type(request) for request, _ in link.asked] == [Acknowledge], "it is not repeated"


def test_what_was_not_taken_of_a_block_has_not_failed_when_all_is_to_come_again() -> None:
    core = core_of(consumer_type=ConsumerType.Shared)
    partition, link = open_partition(core)
    assert partition.open_request(1).redeliveries == 0
    deliver(partition, 1, b"a", b"b", b"c")
    deliver(partition, 2, b"d")
    assert core.receive(0.0).data() == b"a"
    partition.redeliver_unacknowledged()
    ((request, _),) = link.asked
    assert isinstance(request, RedeliverUnacknowledged)
    assert (request.handed_over, request.received, request.redeliveries) == (1, 2, 1)
    assert partition.open_request(2).redeliveries == 1


def test_in_order_what_is_on_its_way_comes_again_behind_the_oldest() -> None:
    core = core_of(consumer_type=ConsumerType.Exclusive)
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    partition.redeliver_unacknowledged()
    assert [type(request) for request, _ in link.asked] == [RedeliverUnacknowledged]
    deliver(partition, 2, b"on its way")
    assert not core.has_received()
    deliver(partition, 3, b"a", generation=1)
    assert core.receive(0.0).data() == b"a"


def test_shared_consumers_get_what_is_on_its_way() -> None:
    core = core_of(consumer_type=ConsumerType.Shared)
    partition, _ = open_partition(core)
    partition.redeliver_unacknowledged()
    deliver(partition, 1, b"on its way")
    assert core.receive(0.0).data() == b"on its way"


@pytest.mark.parametrize(
    ("mode", "is_left"), [(SubscriptionMode.Durable, False), (SubscriptionMode.NonDurable, True)]
)
def test_after_a_silence_the_queue_of_a_durable_subscription_belongs_to_others(
    mode: SubscriptionMode, is_left: bool
) -> None:
    core = core_of(subscription_mode=mode)
    partition, link = open_partition(core)
    if mode == SubscriptionMode.NonDurable:
        partition.deliveries.start = {"target": "latest", "inclusive": False}
    deliver(partition, 1, b"a")
    partition.session.on_detached()
    link.carrier = "second"
    partition.session.reopen(OTHER_SESSION)
    assert core.has_received() is is_left


def test_a_non_persistent_partition_takes_acknowledgments_without_effect() -> None:
    core = core_of(UNSTORED_TOPIC)
    partition, link = open_partition(core, UNSTORED_TOPIC)
    deliver(partition, 1, b"a", b"b")
    message = core.receive(0.0)
    assert message.message_id().ledger_id() == -1
    with core.lock:
        partition.ack_sender.acks.add_message(message.block, message.row)
        partition.ack_sender.nacks.add(-1, -1, 0, 0)
    partition.ack_sender.added()
    partition.ack_sender.nacks_added()
    partition.redeliver_unacknowledged()
    for callback in link.delayed:
        callback()
    assert not link.asked
    assert not partition.ack_sender.unacked
    assert partition.open_request(1).credit == 1000 + partition.deliveries.count.consumed
    assert core.receive(0.0).data() == b"b", "what is queued would not come again"


def test_what_failed_and_was_acknowledged_before_it_is_due_is_told_in_that_order() -> None:
    core = core_of(consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=0)
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    with core.lock:
        partition.ack_sender.nacks.add(LEDGER, 0, 0, 0)
        partition.ack_sender.acks.add(LEDGER, 0)
    partition.ack_sender.nacks_added()
    (send_nacks,) = link.delayed
    send_nacks()
    assert [type(request) for request, _ in link.asked] == [Acknowledge, NegativeAcknowledge]


def test_a_partition_that_ends_while_another_thread_closes_it_lets_that_go_on() -> None:
    core = core_of()
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    with core.lock:
        partition.ack_sender.acks.add(LEDGER, 0)
    is_asked, ended = threading.Event(), threading.Event()

    def wait(event: threading.Event, _deadline: float) -> bool:
        is_asked.set()
        return event.wait(WAIT_S)

    link.wait = wait  # type: ignore[method-assign]

    def close() -> None:
        partition.close(0.0)
        ended.set()

    closing = threading.Thread(target=close)
    closing.start()
    assert is_asked.wait(WAIT_S)
    assert not ended.is_set()
    partition.session.on_refused(SubscriptionNotFound("deleted"))
    assert ended.wait(WAIT_S)
    closing.join()
    assert [type(request) for request, _ in link.asked] == [Acknowledge, CloseEndpoint]
    assert core.has_failed


def test_a_close_is_repeated_although_the_subscription_was_sought_meanwhile() -> None:
    core = core_of()
    partition, link = open_partition(core)
    is_asked, ended = threading.Event(), threading.Event()

    def wait(event: threading.Event, _deadline: float) -> bool:
        is_asked.set()
        return event.wait(WAIT_S)

    link.wait = wait  # type: ignore[method-assign]

    def close() -> None:
        partition.close(WAIT_S)
        ended.set()

    closing = threading.Thread(target=close)
    closing.start()
    assert is_asked.wait(WAIT_S)
    partition.session.on_request(
        Reset(1, after_seeks(1), is_seek=True, last_number=0, granted=0), memoryview(b"")
    )
    # The dispatcher died before it got the first one.
    link.answer_all(SessionLost("cut"))
    partition.requests.send_all()
    assert not ended.is_set()
    assert [type(request) for request in link.answer_all()] == [CloseEndpoint]
    assert ended.wait(WAIT_S)
    closing.join()


def test_asleep_it_is_connected_if_it_was_ever_open() -> None:
    core = core_of()
    partition, link = open_partition(core)
    partition.session.on_detached()
    link.is_parked = True
    assert partition.is_connected
    new_link: Any = DispatcherLink()
    new_link.is_parked = True
    assert not PartitionConsumer(core, new_link, 9, partition.route).is_connected


def test_it_is_opened_again_with_the_same_incarnation_and_its_first_epoch() -> None:
    partition, link = open_partition(core_of())
    partition.session.on_detached()
    assert not partition.is_connected
    partition.session.reopen(OTHER_SESSION)
    request, _ = link.asked[-1]
    assert isinstance(request, OpenConsumer)
    assert request.incarnation == partition.open_request(2).incarnation
    assert request.joined == EPOCH


def while_decoded(partition: PartitionConsumer, act: Callable[[], object]) -> None:
    """Do something while the next delivery is decoded."""
    decode = partition.deliveries.decode

    def acting(delivery: QueuedDelivery) -> ReceivedBlock:
        partition.deliveries.decode = decode
        act()
        return decode(delivery)

    partition.deliveries.decode = acting


def test_messages_that_are_being_decoded_count_as_received_at_a_new_dispatcher() -> None:
    core = core_of(receiver_queue_size=1)
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a")
    counted: list[int] = []
    while_decoded(partition, lambda: counted.append(partition.open_request(9).received_messages))
    assert core.receive(0.0).data() == b"a"
    assert counted == [1]


def test_messages_that_are_dropped_while_they_are_decoded_leave_their_room_to_others() -> None:
    core = core_of(receiver_queue_size=1)
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    rewound = ConsumerOpened(0, "c", EPOCH, resumed=True, generation=1)
    while_decoded(partition, lambda: partition.opened(rewound))
    with pytest.raises(Timeout):
        core.receive(0.0)
    assert link.credits == [1, 2]
    deliver(partition, 2, b"a", generation=1, entry_id=0)
    assert core.receive(0.0).data() == b"a"


@pytest.mark.parametrize("consumer_type", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_messages_that_are_to_come_again_are_not_handed_out_because_they_are_being_decoded(
    consumer_type: ConsumerType,
) -> None:
    core = core_of(consumer_type=consumer_type)
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a")
    while_decoded(partition, partition.redeliver_unacknowledged)
    with pytest.raises(Timeout):
        core.receive(0.0)


def test_a_second_answer_to_opening_the_same_numbering_brings_nothing_twice() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a")
    deliver(partition, 2, b"b")
    # Two requests to open were under way: the second one named nothing that had arrived.
    partition.opened(ConsumerOpened(0, "c", EPOCH, resumed=False, generation=0))
    deliver(partition, 1, b"a")
    deliver(partition, 2, b"b")
    deliver(partition, 3, b"c")
    assert [core.receive(0.0).data() for _ in range(3)] == [b"a", b"b", b"c"]
    assert not core.has_received()


def test_a_second_request_to_redeliver_everything_names_the_first_ones_generation() -> None:
    core = core_of()
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    partition.redeliver_unacknowledged()
    (first,) = link.answer_all(SessionLost("gone"))
    partition.opened(ConsumerOpened(0, "c", EPOCH, resumed=True, generation=1))
    (again,) = link.answer_all()
    assert isinstance(first, RedeliverUnacknowledged)
    assert isinstance(again, RedeliverUnacknowledged)
    assert (first.generation, again.generation) == (0, 0)


def test_acknowledged_rows_that_come_again_count_as_handed_over_and_are_told() -> None:
    core = core_of(consumer_type=ConsumerType.Exclusive, ack_grouping_time_ms=0)
    partition, link = open_partition(core)
    counter_name = partition.deliveries.count.counter_name
    assert counter_name is not None
    deliver(partition, 1, *(b"m",) * 6, entry_id=0, rows=((0, 2), (3, 6)))
    taken = [core.receive(0.0).message_id() for _ in range(5)]
    with core.lock:
        partition.ack_sender.acks.add_cumulative(LEDGER, 0, taken[2].batch_index(), 6)
    partition.ack_sender.added()
    (acknowledge,) = link.answer_all()
    assert isinstance(acknowledge, Acknowledge)
    ((ledger_id, entry_id, rows),) = acknowledge.batch_rows
    assert (ledger_id, entry_id, [tuple(part) for part in rows]) == (LEDGER, 0, [(0, 4)])
    deliver(partition, 2, *(b"m",) * 6, entry_id=0, rows=((2, 3),))
    with pytest.raises(Timeout):
        core.receive(0.0)
    view = CounterView.open(counter_name)
    assert view is not None
    assert view.read() == 6


def test_the_last_report_of_moved_messages_is_made_again_on_a_new_connection() -> None:
    partition, link = open_partition(core_of())

    def reported() -> list[dict[str, Any]]:
        calls = [request for request in link.answer_all(SessionLost("")) if isinstance(request, Call)]
        return [call.arguments for call in calls if call.method == "report_moves"]

    partition.opened(ConsumerOpened(0, "c", EPOCH, resumed=True, generation=0))
    assert reported() == []
    partition.report_moves(3, "")
    assert reported() == [{"moved": 3, "error": ""}]
    partition.session.on_detached()
    partition.opened(ConsumerOpened(0, "c", EPOCH, resumed=True, generation=0))
    assert reported() == [{"moved": 3, "error": ""}]


def test_another_partition_of_the_name_delivers_though_its_dispatcher_has_the_same_epoch() -> None:
    core = core_of(consumer_event_listener=ConsumerEventListener())
    partition, link = open_partition(core)
    deliver(partition, 1, b"of the first")
    partition.session.on_detached()
    link.carrier = "second"
    partition.session.reopen(dataclasses.replace(OTHER_SESSION, directory="/another"))
    request, reply = link.asked[-1]
    assert isinstance(request, OpenConsumer)
    assert (request.numbering, request.received) == (-1, 0)
    reply(ConsumerOpened(0, "c", EPOCH, resumed=False, generation=0), None)
    deliver(partition, 1, b"of the other", entry_id=7)
    assert [core.receive(0.0).data() for _ in range(2)] == [b"of the first", b"of the other"]
    told = [core.activity.get_nowait() for _ in range(2)]
    assert told == [("became_active", -1), ("partition_replaced", -1)]
    assert core.activity.empty()
