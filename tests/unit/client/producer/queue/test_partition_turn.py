"""One partition's turn among several."""

from __future__ import annotations

from pulsar_ray.client.producer.queue.partition_turn import PartitionTurn
from pulsar_ray.client.producer.routing import BatchTurnsRouter


class Destination:
    def __init__(self, *, takes_keyless: bool) -> None:
        self.takes_keyless = takes_keyless


def test_a_finished_batch_gives_the_turn_to_the_next_partition() -> None:
    turns = BatchTurnsRouter(2, 0, hash)
    first, second = PartitionTurn(0), PartitionTurn(1)
    first.join(turns)
    second.join(turns)
    assert [first.is_elsewhere(), second.is_elsewhere()] == [False, True]
    second.end()  # not its turn
    assert not first.is_elsewhere()
    first.end()
    assert [first.is_elsewhere(), second.is_elsewhere()] == [True, False]


def test_a_partition_passes_its_turn_on_only_to_one_that_is_there() -> None:
    turns = BatchTurnsRouter(3, 0, hash)
    others = [Destination(takes_keyless=False) for _ in range(3)]
    turns.serve(others)
    first = PartitionTurn(0)
    first.join(turns)
    first.pass_on()
    assert not first.is_elsewhere()
    others[2].takes_keyless = True
    first.pass_on()
    assert turns.current == 2


def test_without_turns_each_message_is_at_its_place() -> None:
    turn = PartitionTurn(3)
    turn.end()
    turn.pass_on()
    assert not turn.is_elsewhere()
