"""Gathering messages that are sent without batching."""

from __future__ import annotations

import pytest

from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock, UnconfirmedBlocks
from pulsar_ray.client.producer.queue.callback_queue import CallbackQueue
from pulsar_ray.client.producer.queue.gathering import IN_FLIGHT_UNBATCHED, Gathering
from tests.unit.client.producer.publishing_link import ManualTimers


class Gathered:
    """The parts of one queue that gathering looks at."""

    def __init__(self, *, is_batching: bool = False) -> None:
        self.timers = ManualTimers()
        self.callbacks = CallbackQueue(None)
        self.unconfirmed = UnconfirmedBlocks()
        self.writes = 0
        self.gathering = Gathering(
            self.timers, self.callbacks, self.unconfirmed, self.write, is_batching=is_batching
        )

    def write(self) -> None:
        self.writes += 1

    def write_blocks(self, count: int) -> None:
        for seq in range(count):
            self.unconfirmed.add(UnconfirmedBlock(seq, 1, 1, [], 1, 0.0, lambda *_: None))
            self.unconfirmed.next_unsent()


def test_messages_gather_while_enough_blocks_are_under_way() -> None:
    it = Gathered()
    it.write_blocks(IN_FLIGHT_UNBATCHED - 1)
    assert it.gathering.may_end()
    it.write_blocks(1)
    assert not it.gathering.may_end()
    assert it.gathering.goes_on()
    assert not it.gathering.goes_on(has_finished=True)


def test_messages_of_one_turn_of_the_loop_go_together() -> None:
    it = Gathered()
    it.gathering.hold_turn()
    it.gathering.hold_turn()
    assert it.gathering.is_expecting()
    assert it.gathering.goes_on(has_finished=True)
    assert len(it.timers.due) == 1
    it.timers.run()
    assert it.writes == 1
    assert it.gathering.may_end()


def test_messages_that_callbacks_send_go_together() -> None:
    it = Gathered()
    seen: list[bool] = []
    block = UnconfirmedBlock(0, 1, 1, [], 1, 0.0, lambda *_: seen.append(it.gathering.is_expecting()))
    block.outcome = (1, 1, None)
    it.callbacks.settled.append(block)
    it.callbacks.run()
    assert seen == [True]
    assert not it.gathering.is_expecting()


@pytest.mark.parametrize("blocks", [0, 5])
def test_with_batching_nothing_gathers(blocks: int) -> None:
    it = Gathered(is_batching=True)
    it.write_blocks(blocks)
    it.gathering.hold_turn()
    assert not it.timers.due
    assert not it.gathering.may_end()
