"""One producer's queue for one partition; the test is the partition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer import send_state
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.send_queue import SendQueue
from pulsar_ray.client.producer.send_state import OPEN
from pulsar_ray.errors import (
    AlreadyClosed,
    DiskSpaceLow,
    ForkedClient,
    ProducerFenced,
    ProducerQueueIsFull,
    PulsarException,
    Result,
    Timeout,
    WrongNode,
)
from pulsar_ray.lane.waiting import HERE, running_callbacks
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.unit.client.producer.publishing_link import ManualTimers, PublishingLink, opened, receipts

DEADLINE_S = 20


class Outcomes:
    """The callbacks of sends, by value."""

    def __init__(self) -> None:
        self.came: list[tuple[str, Any]] = []

    def of(self, value: str) -> Any:
        def called(result: Any, message_id: MessageId) -> None:
            self.came.append((value, message_id.entry_id() if result == Result.Ok else result))

        return called


class Queue:
    """An open queue, its link, and what became of its sends."""

    def __init__(self, **options: Any) -> None:
        self.link = PublishingLink()
        self.outcomes = Outcomes()
        self.queue = SendQueue(self.link, 7, 0, ProducerOptions(topic="t", **options))
        self.link.carrier = "first"
        self.queue.begin(opened())
        self.queue.resume(opened(), self.link.carrier)

    def send(self, *values: str) -> None:
        for value in values:
            self.queue.enqueue(value.encode(), self.outcomes.of(value))

    def cut(self, carrier: str | None = None) -> None:
        """Lose the carrier, and open on another one if one is given."""
        self.link.carrier = None
        self.queue.pause()
        if carrier is not None:
            self.link.carrier = carrier
            self.queue.resume(opened(), self.link.carrier)

    @property
    def incarnation(self) -> int:
        return self.queue.opening_numbers()[0]


class Role:
    """A role of the queue; what another thread does happens once, before it is taken or given back."""

    def __init__(
        self,
        before_taken: Callable[[], object] | None = None,
        before_given_back: Callable[[], object] | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._before_taken, self._before_given_back = before_taken, before_given_back

    def acquire(self, blocking: bool = True) -> bool:
        before, self._before_taken = self._before_taken, None
        if before is not None:
            before()
        return self._lock.acquire(blocking)

    def release(self) -> None:
        before, self._before_given_back = self._before_given_back, None
        if before is not None:
            before()
        self._lock.release()


def in_thread(call: Any) -> tuple[threading.Thread, list[BaseException]]:
    """Begin a call in a thread; the errors that it raises are kept."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except PulsarException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_messages_are_written_at_once_and_confirmed_in_order() -> None:
    it = Queue()
    it.send("a", "b")
    assert it.link.seqs("first") == [0, 1]
    it.queue.confirm(receipts(1))  # a receipt may overtake an earlier one; its callback may not
    assert not it.outcomes.came
    it.queue.confirm(receipts(0))
    assert it.outcomes.came == [("a", 0), ("b", 10)]
    assert it.queue.state.last_sequence_id == 1


def test_while_two_blocks_are_under_way_messages_gather_into_one() -> None:
    it = Queue()
    it.send("a", "b", "c", "d")
    assert it.link.seqs("first") == [0, 1]
    it.queue.confirm(receipts(0))
    assert it.link.seqs("first") == [0, 1, 2]
    assert it.link.written[-1][1].message_count == 2


def test_blocks_without_a_receipt_are_written_again_with_their_numbers() -> None:
    it = Queue()
    it.send("a", "b")
    it.queue.confirm(receipts(0))
    it.cut()
    it.send("c")
    assert it.link.seqs("first") == [0, 1]
    assert it.queue.opening_numbers()[2] == 1
    it.link.carrier = "second"
    it.queue.resume(opened(), it.link.carrier)
    assert it.link.seqs("second") == [1, 2]
    it.queue.confirm(receipts(1, 2))
    it.queue.confirm(receipts(1, 2))  # twice is harmless
    assert it.outcomes.came == [("a", 0), ("b", 10), ("c", 20)]


def test_receipts_that_come_while_it_is_paused_do_not_count() -> None:
    it = Queue()
    it.send("a")
    it.cut()
    it.queue.confirm(receipts(0))
    assert not it.outcomes.came
    it.link.carrier = "second"
    it.queue.resume(opened(), it.link.carrier)
    it.queue.confirm(receipts(0))
    assert it.outcomes.came == [("a", 0)]


def test_it_does_not_resume_on_a_carrier_that_has_been_replaced() -> None:
    it = Queue()
    it.cut()
    it.link.carrier = "third"
    it.queue.resume(opened(), "second")  # type: ignore[arg-type]
    it.send("a")
    assert it.queue.state.phase is not OPEN
    assert not it.link.written


def test_a_refused_block_fails_alone() -> None:
    it = Queue()
    it.send("a", "b")
    it.queue.refuse(0, DiskSpaceLow("full"))
    it.queue.confirm(receipts(1))
    assert it.outcomes.came == [("a", DiskSpaceLow("").result), ("b", 10)]


def test_starting_over_fails_everything_and_counts_anew_in_place_of_the_old_incarnation() -> None:
    it = Queue()
    it.send("a", "b", "c")
    old = it.incarnation
    it.queue.start_over(Timeout("late"))
    assert [value for value, _ in it.outcomes.came] == ["a", "b", "c"]
    assert {result for _, result in it.outcomes.came} == {Timeout("").result}
    incarnation, replaced, first_seq = it.queue.opening_numbers()
    assert incarnation != old
    assert (replaced, first_seq) == (old, 0)
    it.queue.confirm(receipts(0))  # of the old incarnation
    it.send("d")
    it.queue.resume(opened(), it.link.carrier)
    assert it.queue.opening_numbers() == (incarnation, 0, 0)
    assert it.link.written[-1][1].incarnation == incarnation
    assert it.link.written[-1][1].entry_seq == 0
    it.queue.confirm(receipts(0))
    assert it.outcomes.came[-1] == ("d", 0)


def test_after_its_end_each_call_raises_and_what_was_under_way_has_failed() -> None:
    it = Queue()
    it.send("a")
    it.queue.end(AlreadyClosed("closed"))
    assert it.outcomes.came == [("a", AlreadyClosed("").result)]
    for call in (it.queue.state.raise_if_ended, lambda: it.send("b"), lambda: bulk(it, 1)):
        with pytest.raises(AlreadyClosed):
            call()


def bulk(it: Queue, size: int) -> None:
    """Add a block that is encoded elsewhere."""
    it.queue.add_block(lambda *_: [b""], entries=1, messages=1, size=size, done=lambda *_: None)


def test_a_full_queue_refuses_or_waits_until_receipts_make_room() -> None:
    it = Queue(max_pending_messages=2)
    it.send("a", "b")
    with pytest.raises(ProducerQueueIsFull):
        it.send("c")
    it.queue.confirm(receipts(0))
    it.send("c")

    it = Queue(max_pending_messages=2, block_if_queue_full=True)
    it.send("a", "b")
    thread, raised = in_thread(lambda: it.send("c"))
    wait_for_a_waiting_send(it)
    it.queue.confirm(receipts(0))
    thread.join(DEADLINE_S)
    assert not raised
    assert it.queue.state.unconfirmed.messages == 2


@pytest.mark.parametrize("size", [600, 2500])
def test_rows_wait_for_room_by_bytes_and_nobody_for_one_of_them(size: int) -> None:
    """`max_pending_messages` limits what `send_async` adds; a list of any length is one call."""
    it = Queue(max_pending_messages=2, chunking_enabled=True, chunk_max_message_size=1000)
    blocks = -(-size // 1000)
    for number in range(5):
        it.queue.add_row(b"x" * size, it.outcomes.of(f"{number}"), MessageFields(f"k{number}"))
    assert it.link.seqs("first") == list(range(5 * blocks))
    assert it.link.awaited == [False] * 5 * blocks, "its answer is read by the I/O thread"
    it.queue.confirm(receipts(*range(5 * blocks)))
    assert [value for value, _ in it.outcomes.came] == ["0", "1", "2", "3", "4"]


def test_a_row_waits_while_too_many_bytes_are_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_state, "MAX_UNCONFIRMED_BYTES", 1000)
    it = Queue(chunking_enabled=True)
    it.queue.add_row(b"x" * 600, it.outcomes.of("a"), None)
    thread, raised = in_thread(lambda: it.queue.add_row(b"x" * 600, it.outcomes.of("b"), None))
    wait_for_a_waiting_send(it)
    it.queue.confirm(receipts(0))
    thread.join(DEADLINE_S)
    assert not raised
    assert it.link.seqs("first") == [0, 1]


def test_a_send_that_waits_for_room_ends_with_the_queue() -> None:
    it = Queue(max_pending_messages=1, block_if_queue_full=True)
    it.send("a")
    thread, raised = in_thread(lambda: it.send("b"))
    wait_for_a_waiting_send(it)
    it.queue.end(AlreadyClosed("closed"))
    thread.join(DEADLINE_S)
    assert [type(error) for error in raised] == [AlreadyClosed]
    assert it.outcomes.came == [("a", AlreadyClosed("").result)]


def test_a_send_that_waits_goes_on_when_the_incarnation_is_given_up() -> None:
    it = Queue(max_pending_messages=1, block_if_queue_full=True)
    it.send("a")
    thread, raised = in_thread(lambda: it.send("b"))
    wait_for_a_waiting_send(it)
    it.queue.start_over(Timeout("late"))
    thread.join(DEADLINE_S)
    assert not raised
    it.queue.resume(opened(), it.link.carrier)
    assert it.link.written[-1][1].entry_seq == 0


def wait_for_a_waiting_send(it: Queue) -> None:
    for _ in range(2000):
        if it.queue.waiting:
            return
        threading.Event().wait(0.01)
    raise AssertionError("no send waits for room")


def test_a_thread_that_finds_another_one_writing_leaves_its_block_to_that_one() -> None:
    it = Queue()
    is_sending, may_send = threading.Event(), threading.Event()

    def hold_first() -> None:
        it.link.before_send = lambda: None
        is_sending.set()
        assert may_send.wait(DEADLINE_S)

    it.link.before_send = hold_first
    first, _ = in_thread(lambda: it.send("a"))
    assert is_sending.wait(DEADLINE_S)
    it.send("b")  # returns, although the socket is full
    assert not it.link.written
    may_send.set()
    first.join(DEADLINE_S)
    assert it.link.seqs("first") == [0, 1]


def test_a_carrier_lost_while_a_block_is_written_leaves_no_block_behind_and_none_out_of_order() -> None:
    it = Queue()

    def lose_and_resume() -> None:
        # Between taking the block and writing it: a new carrier stands, on which all is written again first.
        it.link.before_send = lambda: None
        resuming, _ = in_thread(lambda: it.cut("second"))
        resuming.join(DEADLINE_S)

    it.link.before_send = lose_and_resume
    it.send("a")
    assert it.link.seqs("second") == [0], "the one that resumed had found the role of writing taken"
    it.send("b")
    assert it.link.seqs("first") == []
    assert it.link.seqs("second") == [0, 1]


def test_batches_are_sealed_by_count_by_time_and_by_a_flush() -> None:
    it = Queue(batching_enabled=True, batching_max_messages=2, batching_max_publish_delay_ms=0)
    it.send("a", "b")
    assert it.link.seqs("first") == [0]
    it.send("c")
    assert it.link.seqs("first") == [0]
    it.link.manual_timers.run()
    assert it.link.seqs("first") == [0, 1]
    it.send("d")
    done: list[str] = []
    it.queue.when_settled(lambda: done.append("settled"))
    assert it.link.seqs("first") == [0, 1, 2]
    it.queue.confirm(receipts(0, 1, 2))
    assert done == ["settled"]
    it.queue.when_settled(lambda: done.append("at once"))
    assert done == ["settled", "at once"]


def test_a_batch_that_its_time_seals_without_a_carrier_waits_for_the_partition() -> None:
    it = Queue(batching_enabled=True, batching_max_publish_delay_ms=0, send_timeout_millis=1)
    it.cut()
    it.send("a")
    it.link.manual_timers.run()
    assert it.queue.has_pending()
    wait_until(it.queue.has_expired, what="its send timeout is over")
    it.cut("second")
    assert it.link.seqs("second") == [0]


def test_a_batch_that_was_sealed_right_before_the_loss_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Queue(batching_enabled=True, batching_max_publish_delay_ms=0)
    it.send("a")
    with monkeypatch.context() as patched:
        patched.setattr(it.queue, "_writes", Role(before_taken=it.cut))
        it.link.manual_timers.run()
    assert it.queue.has_pending()
    it.cut("second")
    assert it.link.seqs("second") == [0]


def test_messages_that_callbacks_send_go_out_together() -> None:
    it = Queue()

    def answer(_result: Any, _message_id: Any) -> None:
        it.send("b", "c")

    it.queue.enqueue(b"a", answer)
    it.queue.confirm(receipts(0))
    assert it.link.seqs("first") == [0, 1]
    assert it.link.written[-1][1].message_count == 2


def test_before_the_partition_has_answered_sends_raise_why() -> None:
    link = PublishingLink()
    queue = SendQueue(link, 7, 0, ProducerOptions(topic="t"))
    queue.begin_later(WrongNode("its node is away"))
    for _ in range(2):
        with pytest.raises(WrongNode):
            queue.enqueue(b"a", None)
    assert not queue.state.takes_keyless
    link.carrier = "first"
    queue.resume(opened("given"), link.carrier)
    queue.enqueue(b"a", None)
    assert queue.state.producer_name == "given"
    assert link.seqs("first") == [0]


def test_a_forked_child_sends_nothing_and_raises() -> None:
    it = Queue()
    it.send("a")
    it.queue._lock.acquire()  # as another thread of the parent may have
    it.queue.forked(ForkedClient())
    assert it.queue.state.unconfirmed.messages == 0
    with pytest.raises(ForkedClient):
        it.send("b")
    assert not it.outcomes.came


def test_a_fenced_producer_is_told_by_its_sends() -> None:
    it = Queue()
    it.send("a")
    it.queue.start_over(ProducerFenced("another one"))
    assert it.outcomes.came == [("a", ProducerFenced("").result)]


def test_work_added_just_before_the_write_role_is_given_back_is_written_by_its_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = Queue()
    # The holder has found nothing more and gives the role back; whoever added finds it taken.
    role = Role(before_given_back=lambda: it.queue.state.add(b"b", None))
    monkeypatch.setattr(it.queue, "_writes", role)
    it.send("a")
    assert it.link.seqs("first") == [0, 1]


def test_a_forked_child_has_roles_of_its_own() -> None:
    it = Queue()
    it.queue._writes.acquire()
    it.queue._calls_back.acquire()
    it.queue.forked(ForkedClient())
    done: list[str] = []
    it.queue.when_settled(lambda: done.append("settled"))
    assert done == ["settled"]


def test_a_thread_that_finds_callbacks_running_leaves_its_own_to_that_thread() -> None:
    it = Queue()
    came: list[str] = []
    is_running, may_go_on = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        is_running.set()
        assert may_go_on.wait(DEADLINE_S)
        came.append("first")

    it.queue.enqueue(b"a", hold)
    it.queue.enqueue(b"b", lambda *_: came.append("second"))
    first, _ = in_thread(lambda: it.queue.confirm(receipts(0)))
    assert is_running.wait(DEADLINE_S)
    it.queue.confirm(receipts(1))  # returns at once
    assert came == []
    may_go_on.set()
    first.join(DEADLINE_S)
    assert came == ["first", "second"]
    assert not it.queue.state.is_calling_back


def test_callbacks_that_settle_more_do_not_nest() -> None:
    it = Queue()
    came: list[str] = []

    def settle_more(*_: Any) -> None:
        it.queue.confirm(receipts(1))
        came.append("outer")

    it.queue.enqueue(b"a", settle_more)
    it.queue.enqueue(b"b", lambda *_: came.append("inner"))
    it.queue.confirm(receipts(0))
    assert came == ["outer", "inner"]


def test_with_a_home_callbacks_run_there_only() -> None:
    it = Queue()
    home: Any = ManualTimers()
    it.queue._home = home
    it.send("a")
    it.queue.confirm(receipts(0))
    assert it.outcomes.came == []
    home.is_current = True
    home.run()
    assert it.outcomes.came == [("a", 0)]


def test_on_the_thread_that_makes_room_nobody_waits_for_it() -> None:
    it = Queue(max_pending_messages=1, block_if_queue_full=True)
    it.send("a")
    with running_callbacks(), pytest.raises(ProducerQueueIsFull, match="callback"):
        it.send("b")
    it.link.manual_timers.is_current = True
    with pytest.raises(ProducerQueueIsFull, match="callback"):
        it.send("b")


def test_a_wait_for_room_ends_at_the_send_timeout_and_what_was_open_is_written() -> None:
    it = Queue(batching_enabled=True, max_pending_messages=2, block_if_queue_full=True, send_timeout_millis=1)
    it.send("a", "b")
    with pytest.raises(Timeout, match=r"0\.001 s"):
        it.send("c")
    assert it.queue.waiting == 0
    it.link.manual_timers.run()
    assert it.link.seqs("first") == [0]


def test_the_callback_of_a_message_that_was_not_added_runs_as_each_other_does() -> None:
    it = Queue(max_pending_messages=1)
    it.send("a")
    may_wait: list[bool] = []
    depth = 0

    def send_again(result: Any, _: MessageId) -> None:
        nonlocal depth
        may_wait.append(not HERE.runs_callbacks)
        depth += 1
        assert depth == 1, "one callback runs inside another"
        if len(may_wait) < 3:
            it.queue.fail(send_again, ProducerQueueIsFull(str(result)))
        depth -= 1

    it.queue.fail(send_again, ProducerQueueIsFull("full"))
    assert may_wait == [False, False, False]


def test_room_that_is_made_is_told() -> None:
    it = Queue(max_pending_messages=1)
    called: list[str] = []
    it.queue.on_room = lambda: called.append("room")
    it.send("a")
    it.queue.confirm(receipts(0))
    assert called == ["room"]
