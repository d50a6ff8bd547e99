"""Receivers that wait are offered messages in the order they came."""

from __future__ import annotations

from typing import Any

from pulsar_ray.client.received.waiting_receivers import FutureReceiver, Receiver, WaitingReceivers
from pulsar_ray.errors import AlreadyClosed
from pulsar_ray.lane.waiting import may_wait

MESSAGE: Any = "a message"
ORIGIN: Any = "where it came from"


def test_the_first_who_wants_it_gets_it() -> None:
    gone, first, second = FutureReceiver(), FutureReceiver(), FutureReceiver()
    gone.future.cancel()
    waiting = WaitingReceivers([gone, first, second])
    taker = waiting.claim()
    assert taker is first
    taker.give(MESSAGE, ORIGIN)
    assert first.future.result(0) == MESSAGE
    assert not second.future.done()
    assert list(waiting) == [second]


def test_nobody_takes_it_if_nobody_wants_it() -> None:
    gone = FutureReceiver()
    gone.future.cancel()
    waiting = WaitingReceivers([gone])
    assert waiting.claim() is None
    assert not waiting


def test_one_that_is_claimed_cannot_be_cancelled_any_more() -> None:
    first = FutureReceiver()
    assert WaitingReceivers([first]).claim() is first
    assert not first.future.cancel()
    first.give(MESSAGE, ORIGIN)
    assert first.future.result(0) == MESSAGE


def test_callbacks_of_a_future_must_not_wait() -> None:
    given, failed = FutureReceiver(), FutureReceiver()
    allowed: list[bool] = []
    for receiver in (given, failed):
        receiver.future.add_done_callback(lambda _: allowed.append(may_wait()))
        assert receiver.claim()
    given.give(MESSAGE, ORIGIN)
    failed.fail(AlreadyClosed("the consumer is closed"))
    assert allowed == [False, False]
    assert may_wait()


def test_all_that_wait_fail_at_the_end() -> None:
    gone, first, second = FutureReceiver(), FutureReceiver(), FutureReceiver()
    gone.future.cancel()
    waiting = WaitingReceivers([first, gone, second])
    error = AlreadyClosed("the consumer is closed")
    waiting.fail(error)
    assert [receiver.future.exception(0) for receiver in (first, second)] == [error, error]
    assert not waiting


def test_who_is_taken_away_meanwhile_is_not_missed() -> None:
    class Emptied(WaitingReceivers):
        """Another thread is quicker."""

        def popleft(self) -> Receiver:
            super().popleft()
            return super().popleft()

    assert Emptied([FutureReceiver()]).claim() is None
