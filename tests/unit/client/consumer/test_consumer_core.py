"""Messages leave the queue of a consumer by threads, receivers and batches; the dispatcher is played here."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future

import pytest

from pulsar_ray.client.received.batch_collector import BatchCollector
from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.waiting_receivers import FutureReceiver
from pulsar_ray.errors import AlreadyClosed, ForkedClient, SubscriptionNotFound, Timeout, TopicNotFound
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.unit.client.consumer.delivering import LEDGER, TOPIC, core_of, deliver, open_partition

WAIT_S = 20.0


def receiving(core_receive: object) -> Future[bytes]:
    """The data of a message that a thread of its own receives."""
    result: Future[bytes] = Future()

    def run() -> None:
        try:
            result.set_result(core_receive().data())  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def test_messages_of_all_partitions_come_in_the_order_of_their_arrival() -> None:
    core = core_of(TOPIC, f"{TOPIC}2")
    first, _ = open_partition(core, TOPIC)
    second, _ = open_partition(core, f"{TOPIC}2")
    deliver(second, 1, b"a", b"b")
    deliver(first, 1, b"c")
    assert [core.receive(0.0).data() for _ in range(3)] == [b"a", b"b", b"c"]
    with pytest.raises(Timeout):
        core.receive(0.0)


def test_each_message_goes_to_one_of_many_threads_while_more_arrive() -> None:
    core = core_of(TOPIC, f"{TOPIC}2", receiver_queue_size=100)
    partitions = [open_partition(core, TOPIC)[0], open_partition(core, f"{TOPIC}2")[0]]
    got: list[list[bytes]] = [[], [], []]

    def receive(mine: list[bytes]) -> None:
        while True:
            data = core.receive(time.monotonic() + WAIT_S).data()
            if data == b"end":
                return
            mine.append(data)

    threads = [threading.Thread(target=receive, args=(mine,)) for mine in got]
    for thread in threads:
        thread.start()
    sent = []
    for number in range(1, 31):
        for index, partition in enumerate(partitions):
            values = [f"{index}/{number}/{row}".encode() for row in range(4)]
            deliver(partition, number, *values)
            sent += values
    for number in range(31, 34):
        deliver(partitions[0], number, b"end")
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sorted(value for mine in got for value in mine) == sorted(sent)
    for mine in got:
        for index in b"01":
            own = [tuple(map(int, value.split(b"/"))) for value in mine if value[0] == index]
            assert own == sorted(own), "a thread gets messages of a partition in their order"


def test_nobody_waits_for_messages_of_a_process_that_has_told_its_end() -> None:
    core = core_of()
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    link.is_over = True
    assert core.receive(0.0).data() == b"a"
    with pytest.raises(AlreadyClosed):
        core.receive(time.monotonic() + 0.5)


def test_a_receiver_gets_the_next_message_before_a_later_one() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    receivers = [FutureReceiver(), FutureReceiver()]
    for receiver in receivers:
        core.add_receiver(receiver)
    assert core.receive_now() is None, "others wait already"
    deliver(partition, 1, b"a", b"b")
    assert [receiver.future.result(0).data() for receiver in receivers] == [b"a", b"b"]


def test_a_cancelled_receiver_takes_nothing() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    receiver = FutureReceiver()
    core.add_receiver(receiver)
    assert receiver.future.cancel()
    deliver(partition, 1, b"a")
    assert core.receive(0.0).data() == b"a"


def test_messages_that_are_given_back_are_the_next_ones_unless_a_rewind_came_between() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a", b"b", b"c")
    taken = BatchCollector(2, 2**62, fills=False)
    core.take_into(taken, 0.0)
    assert [len(part.rows) for part in taken.parts] == [2]
    assert partition.deliveries.count.consumed == 2
    core.give_back(taken.parts, taken.origins)
    assert partition.deliveries.count.consumed == 0
    assert core.receive(0.0).data() == b"a"
    taken = BatchCollector(2, 2**62, fills=False)
    core.take_into(taken, 0.0)
    deliver(partition, 2, b"d", generation=1)
    core.give_back(taken.parts, taken.origins)
    assert core.receive(0.0).data() == b"d"


def test_a_batch_is_cut_where_it_is_full_and_the_rest_is_next() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a", b"b", b"c")
    taken = BatchCollector(2, 2**62, fills=True)
    core.take_into(taken, time.monotonic() + WAIT_S)
    assert taken.is_full
    assert core.receive(0.0).data() == b"c"


def test_a_batch_asks_for_what_it_makes_room_for_once_and_before_it_is_handed_out() -> None:
    core = core_of(receiver_queue_size=10)
    partition, link = open_partition(core)
    deliver(partition, 1, *[b"a"] * 5)
    deliver(partition, 2, *[b"b"] * 5)
    core.take_into(BatchCollector(100, 2**62, fills=False), 0.0)
    assert link.credits == [10, 20]
    deliver(partition, 3, *[b"c"] * 5)
    core.take_into(BatchCollector(100, 2**62, fills=False), 0.0)
    assert link.credits == [10, 20, 25], "the next messages come while the application has these"


def test_a_queue_of_no_size_asks_for_a_message_while_a_receiver_waits() -> None:
    core = core_of(receiver_queue_size=0)
    partition, link = open_partition(core)
    assert link.credits == [0]
    receiver = FutureReceiver()
    core.add_receiver(receiver)
    assert link.credits == [0, 1]
    deliver(partition, 1, b"a")
    assert receiver.future.result(0).data() == b"a"
    assert core.window == 0


def test_a_paused_consumer_asks_for_nothing_until_it_resumes() -> None:
    core = core_of(receiver_queue_size=10, start_paused=True)
    _, link = open_partition(core)
    assert link.credits == [0]
    core.resume()
    assert link.credits == [0, 10]


def test_partitions_share_the_total_queue() -> None:
    core = core_of(TOPIC, f"{TOPIC}2", max_total_receiver_queue_size_across_partitions=100)
    open_partition(core, TOPIC)
    assert core.window == 100
    open_partition(core, f"{TOPIC}2")
    assert core.window == 50
    core.widen(400)
    assert core.window == 400
    small = core_of(TOPIC, f"{TOPIC}2", max_total_receiver_queue_size_across_partitions=1)
    for topic in (TOPIC, f"{TOPIC}2"):
        open_partition(small, topic)
        assert small.window == 1, "a partition without room would never be heard"


def test_the_end_reaches_threads_and_receivers_that_wait() -> None:
    core = core_of(TOPIC, f"{TOPIC}2")
    open_partition(core, TOPIC)
    receiver = FutureReceiver()
    core.add_receiver(receiver)
    waiting = receiving(lambda: core.receive(time.monotonic() + WAIT_S))
    core.close("consumer")
    for result in (waiting, receiver.future):
        assert isinstance(result.exception(WAIT_S), AlreadyClosed)
    with pytest.raises(AlreadyClosed):
        core.add_receiver(FutureReceiver())


def test_queued_messages_of_a_deleted_topic_are_not_handed_out() -> None:
    core = core_of(TOPIC, f"{TOPIC}2")
    first, link = open_partition(core, TOPIC)
    second, _ = open_partition(core, f"{TOPIC}2")
    deliver(first, 1, b"gone")
    deliver(second, 1, b"kept")
    first.session.on_refused(TopicNotFound("deleted"))
    assert core.receive(0.0).data() == b"kept"
    assert not core.has_received()
    assert not core.has_failed
    assert first.consumer_id not in link.endpoints


def test_acknowledged_rows_of_a_batch_that_comes_again_are_not_handed_out() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a", b"b", b"c")
    first = core.receive(0.0)
    with core.lock:
        partition.ack_sender.acks.add_message(first.block, first.row)
    deliver(partition, 2, b"a", b"b", b"c", generation=1, entry_id=0)
    assert [core.receive(0.0).data() for _ in range(2)] == [b"b", b"c"]
    assert partition.deliveries.count.consumed == 3 + 3, "rows that are left out count as consumed"


@pytest.mark.parametrize("is_sent", [False, True], ids=["gathered", "sent"])
@pytest.mark.parametrize("values", [(b"a",), (b"a", b"b", b"c")], ids=["message", "batch"])
def test_what_was_acknowledged_is_not_handed_out_when_it_comes_again(
    values: tuple[bytes, ...], is_sent: bool
) -> None:
    core = core_of(consumer_type=ConsumerType.Shared)
    partition, _ = open_partition(core)
    deliver(partition, 1, *values)
    first = [core.receive(0.0) for _ in values]
    deliver(partition, 2, *values, entry_id=0, count=1)
    assert core.has_received()
    with core.lock:
        partition.ack_sender.acks.add_part(first[0].block, range(len(values)))
    if is_sent:
        partition.ack_sender.flush()
    assert not core.has_received()
    with pytest.raises(Timeout):
        core.receive(0.0)
    assert partition.deliveries.count.consumed == 2 * len(values)


def test_a_confirmed_acknowledgment_counts_for_what_waits_and_for_nothing_that_comes_later() -> None:
    core = core_of(consumer_type=ConsumerType.Shared)
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    core.receive(0.0)
    deliver(partition, 2, b"a", entry_id=0, count=1)
    with core.lock:
        partition.ack_sender.acks.add(LEDGER, 0)
    partition.ack_sender.flush()
    link.answer_all()
    with pytest.raises(Timeout):
        core.receive(0.0)
    assert partition.deliveries.count.consumed == 2
    deliver(partition, 3, b"a", entry_id=0, count=2)
    assert core.receive(0.0).redelivery_count() == 2, "a dispatcher that lost it delivers it for good reason"


def test_a_refused_acknowledgment_holds_nothing_back() -> None:
    core = core_of(consumer_type=ConsumerType.Shared)
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    core.receive(0.0)
    deliver(partition, 2, b"a", entry_id=0, count=1)
    with core.lock:
        partition.ack_sender.acks.add(LEDGER, 0)
    partition.ack_sender.flush()
    link.answer_all(SubscriptionNotFound("no"))
    assert core.receive(0.0).redelivery_count() == 1


@pytest.mark.parametrize("seed", range(20))
def test_no_copy_is_handed_out_of_what_was_acknowledged_and_all_others_are(seed: int) -> None:
    rng = random.Random(seed)
    core = core_of(consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    partition, link = open_partition(core)
    sizes = [rng.choice([1, 1, 3]) for _ in range(40)]
    for entry_id, size in enumerate(sizes):
        deliver(partition, entry_id + 1, *(b"%d.%d" % (entry_id, row) for row in range(size)))
    messages = [core.receive(0.0) for _ in range(sum(sizes))]
    for entry_id, size in enumerate(sizes):
        values = [b"%d.%d" % (entry_id, row) for row in range(size)]
        deliver(partition, len(sizes) + entry_id + 1, *values, entry_id=entry_id, count=1)
    left = {message.data() for message in messages}
    handed_out: set[bytes] = set()
    while messages:
        step = rng.choice(["acknowledge", "flush", "answer", "receive"])
        if step == "acknowledge":
            message = messages.pop(rng.randrange(len(messages)))
            with core.lock:
                partition.ack_sender.acks.add_part(message.block, [message.row])
            if message.data() not in handed_out:
                left.discard(message.data())
        elif step == "flush":
            partition.ack_sender.flush()
        elif step == "answer":
            link.answer_all()
        elif rng.random() < 0.3 and (again := core.receive_now()) is not None:
            assert again.data() in left
            handed_out.add(again.data())
    while (rest := core.receive_now()) is not None:
        handed_out.add(rest.data())
    assert handed_out == left
    assert partition.deliveries.count.consumed == 2 * sum(sizes)


def test_a_forked_child_hands_out_nothing_and_cannot_hang() -> None:
    core = core_of()
    partition, link = open_partition(core)
    deliver(partition, 1, b"a")
    core.lock.acquire()  # by a thread that the child does not have
    core.forked(ForkedClient())
    with pytest.raises(ForkedClient):
        core.receive(0.0)
    partition.ack_sender.flush()
    partition.deliveries.send_credit(always=True)
    assert link.credits == [1000]


def test_a_thread_that_waits_wakes_for_what_arrives() -> None:
    core = core_of(TOPIC, f"{TOPIC}2")
    partition, _ = open_partition(core, TOPIC)
    waits = threading.Event()
    is_set = core.is_set

    def look() -> bool:
        waits.set()
        return is_set()

    core.is_set = look  # type: ignore[method-assign]
    waiting = receiving(lambda: core.receive(time.monotonic() + WAIT_S))
    assert waits.wait(WAIT_S)
    deliver(partition, 1, b"a")
    assert waiting.result(WAIT_S) == b"a"


def test_one_message_at_a_time_needs_no_object_but_the_message() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    deliver(partition, 1, b"a")
    message = core.receive(0.0)
    assert type(message) is Message
    assert core.queue.is_empty


def test_behind_its_own_end_it_is_closed_although_its_subscription_is_gone_too() -> None:
    core = core_of()
    partition, _ = open_partition(core)
    partition.session.on_refused(SubscriptionNotFound("it was deleted"))
    with pytest.raises(SubscriptionNotFound):
        core.receive(0.0)
    core.close("consumer")
    with pytest.raises(AlreadyClosed):
        core.receive(0.0)


def test_rows_that_are_given_back_reach_a_thread_that_waits() -> None:
    core = core_of(TOPIC)
    partition, _ = open_partition(core, TOPIC)
    deliver(partition, 1, b"a", b"b")
    taken = BatchCollector(10, 1 << 20, fills=False)
    core.take_into(taken, 0.0)
    waiting = receiving(lambda: core.receive(time.monotonic() + WAIT_S))
    wait_until(core._taking.locked, what="it takes")
    core.give_back(taken.parts, taken.origins)
    assert waiting.result(WAIT_S) == b"a"
    assert core.has_received()
    assert core.receive(0.0).data() == b"b"
