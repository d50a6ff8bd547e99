"""Callbacks run in the order of completion, one thread at a time."""

from __future__ import annotations

import threading
from typing import Any

from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock
from pulsar_ray.client.producer.queue.callback_queue import CallbackQueue

DEADLINE_S = 20


def settled(done: Any) -> UnconfirmedBlock:
    block = UnconfirmedBlock(0, 1, 1, [], 0, 0.0, lambda *_: done())
    block.outcome = (1, 2, None)
    return block


def test_a_thread_that_finds_callbacks_running_leaves_its_own_to_that_thread() -> None:
    queue = CallbackQueue(None)
    came: list[str] = []
    is_running, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_running.set()
        assert may_go_on.wait(DEADLINE_S)
        came.append("first")

    queue.settled.append(settled(hold))
    thread = threading.Thread(target=queue.run)
    thread.start()
    assert is_running.wait(DEADLINE_S)
    assert queue.is_running
    queue.settled.append(settled(lambda: came.append("second")))
    queue.run()  # returns at once
    assert came == []
    may_go_on.set()
    thread.join(DEADLINE_S)
    assert came == ["first", "second"]
    assert not queue.is_running


def test_callbacks_that_settle_more_do_not_nest() -> None:
    queue = CallbackQueue(None)
    came: list[str] = []

    def settle_more() -> None:
        queue.settled.append(settled(lambda: came.append("inner")))
        queue.run()
        came.append("outer")

    queue.settled.append(settled(settle_more))
    queue.run()
    assert came == ["outer", "inner"]


def test_with_a_home_they_run_there_only() -> None:
    class Home:
        is_current = False
        due: list[Any] = []  # noqa: RUF012

        def call_soon(self, callback: Any) -> None:
            self.due.append(callback)

    home: Any = Home()
    queue = CallbackQueue(home)
    came: list[str] = []
    queue.settled.append(settled(lambda: came.append("done")))
    queue.run()
    assert came == []
    home.is_current = True
    home.due.pop()()
    assert came == ["done"]
