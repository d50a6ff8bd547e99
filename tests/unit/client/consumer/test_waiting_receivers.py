"""Receivers that wait are offered messages in the order they came."""

from __future__ import annotations

from typing import Any

from pulsar_ray.client.consumer.waiting_receivers import FutureReceiver, Receiver, WaitingReceivers
from pulsar_ray.errors import AlreadyClosed

MESSAGE: Any = "a message"
ORIGIN: Any = "where it came from"


def give(receiver: Receiver) -> bool:
    return receiver.give(MESSAGE, ORIGIN)


def test_the_first_who_wants_it_gets_it() -> None:
    gone, first, second = FutureReceiver(), FutureReceiver(), FutureReceiver()
    gone.future.cancel()
    waiting = WaitingReceivers([gone, first, second])
    assert waiting.offer(give)
    assert first.future.result(0) == MESSAGE
    assert not second.future.done()
    assert list(waiting) == [second]


def test_nobody_takes_it_if_nobody_wants_it() -> None:
    gone = FutureReceiver()
    gone.future.cancel()
    waiting = WaitingReceivers([gone])
    assert not waiting.offer(give)
    assert not waiting


def test_an_error_goes_to_one_as_well() -> None:
    first, second = FutureReceiver(), FutureReceiver()
    waiting = WaitingReceivers([first, second])
    error = AlreadyClosed("the consumer is closed")
    assert waiting.offer(lambda receiver: receiver.fail(error))
    assert first.future.exception(0) is error
    assert list(waiting) == [second]


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

    assert not Emptied([FutureReceiver()]).offer(give)
