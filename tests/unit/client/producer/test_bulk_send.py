"""One answer for all blocks of a call."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_ray.client.producer.bulk_send import BulkReceipts
from pulsar_ray.errors import DiskSpaceLow, Result, Timeout
from pulsar_ray.model.message_id import MessageId


def message(partition: int, entry_id: int) -> MessageId:
    return MessageId(partition, 1, entry_id)


def test_the_answer_comes_once_all_blocks_have_ended_and_no_more_follow() -> None:
    answers: list[Any] = []
    receipts = BulkReceipts(lambda *answer: answers.append(answer))
    for _ in range(3):
        receipts.begin_block()
    receipts.stored(1, message(1, 7))
    receipts.stored(0, message(0, 9))
    receipts.stored(0, message(0, 4))  # another queue of the same partition may answer late
    assert not answers
    receipts.all_begun()
    assert answers == [(Result.Ok, [message(0, 9), message(1, 7)])]
    assert receipts.wait(None, 0.0) == [message(0, 9), message(1, 7)]


def test_the_first_error_is_the_answer() -> None:
    answers: list[Any] = []
    receipts = BulkReceipts(lambda *answer: answers.append(answer))
    for _ in range(3):
        receipts.begin_block()
    receipts.all_begun()
    receipts.failed(DiskSpaceLow("full"))
    receipts.stored(0, message(0, 1))
    receipts.failed(Timeout("late"))
    assert answers == [(DiskSpaceLow("").result, [])]
    with pytest.raises(DiskSpaceLow):
        receipts.wait(None, 0.0)


def test_waiting_ends_with_the_last_block_or_at_the_timeout() -> None:
    receipts = BulkReceipts(None)
    receipts.begin_block()
    with pytest.raises(Timeout):
        receipts.wait(None, 0.001)
    ids: list[Any] = []
    waiting = threading.Thread(target=lambda: ids.append(receipts.wait(None, 20)))
    waiting.start()
    receipts.all_begun()
    receipts.stored(0, message(0, 1))
    waiting.join(20)
    assert ids == [[message(0, 1)]]


def test_an_error_of_the_callback_harms_nobody() -> None:
    def fail(*_: Any) -> None:
        raise ValueError

    receipts = BulkReceipts(fail)
    receipts.all_begun()
    assert receipts.wait(None, 0.0) == []
