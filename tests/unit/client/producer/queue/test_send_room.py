"""The limits of a producer's queue."""

from __future__ import annotations

import threading

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock, UnconfirmedBlocks
from pulsar_ray.client.producer.queue.send_room import MAX_UNCONFIRMED_BYTES, UNLIMITED, SendRoom
from pulsar_ray.errors import Timeout


def block(seq: int, messages: int, size: int) -> UnconfirmedBlock:
    return UnconfirmedBlock(seq, 1, messages, [], size, 0.0, lambda *_: None)


def room_of(
    max_messages: int, *blocks: UnconfirmedBlock, timeout_ms: int = 30_000
) -> tuple[threading.Lock, SendRoom]:
    lock, unconfirmed = threading.Lock(), UnconfirmedBlocks()
    for each in blocks:
        unconfirmed.add(each)
    options = ProducerOptions(topic="t", max_pending_messages=max_messages, send_timeout_millis=timeout_ms)
    return lock, SendRoom(lock, unconfirmed, options)


def test_gathered_and_unconfirmed_messages_count_together() -> None:
    _, room = room_of(5, block(0, 3, 10))
    assert room.left(gathered=1) == 1
    assert not room.is_full(1, 1, 0)
    assert room.is_full(2, 1, 0)
    assert room.left(gathered=4) == 0


def test_without_a_limit_of_messages_bytes_still_count() -> None:
    _, room = room_of(0, block(0, 3, 10))
    assert room.left(1000) == UNLIMITED
    _, room = room_of(0, block(0, 1, MAX_UNCONFIRMED_BYTES + 1))
    assert room.left(0) == 0
    assert room.is_full(0, 0, 1)


def test_a_block_above_the_limit_of_bytes_fits_alone() -> None:
    _, empty = room_of(10)
    assert not empty.is_full(0, 0, 2 * MAX_UNCONFIRMED_BYTES)
    _, room = room_of(10, block(0, 1, 1))
    assert room.is_full(0, 0, 2 * MAX_UNCONFIRMED_BYTES)


def test_room_that_is_made_wakes_a_thread_that_waits() -> None:
    lock, room = room_of(1, block(0, 1, 1))
    called: list[str] = []
    room.on_room = lambda: called.append("room")
    is_over = threading.Event()

    def wait() -> None:
        with lock:
            room.wait_until(is_over.is_set)

    thread = threading.Thread(target=wait)
    thread.start()
    while not room.waiting:
        thread.join(0.01)
    with lock:
        is_over.set()
        room.made()
    thread.join(20)
    assert not thread.is_alive()
    assert (called, room.waiting) == (["room"], 0)


def test_waiting_ends_at_the_send_timeout_and_with_an_error() -> None:
    lock, room = room_of(1, timeout_ms=1)
    with lock, pytest.raises(Timeout, match=r"0\.001 s"):
        room.wait_until(lambda: False)

    def fail() -> bool:
        raise ValueError

    with lock, pytest.raises(ValueError):
        room.wait_until(fail)
    assert room.waiting == 0
