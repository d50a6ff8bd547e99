"""Letters that were stored at some moment, received from several partitions."""

from __future__ import annotations

from pulsar_ray.admin.stored_letters import NOTHING_OLD_MS, stored_letters
from pulsar_ray.client.received.message import BlockRows
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.client.blocks import received

ENDS = {"a": Position(3, 5), "b": Position(3, 5), "empty": Position(-1, -1)}


class Scripted:
    """Gives these batches of (topic, entry id); then nothing is available."""

    def __init__(self, *batches: list[tuple[str, int]]) -> None:
        self.batches = list(batches)

    def batch_receive(self) -> MessageBatchView:
        batch = self.batches.pop(0) if self.batches else []
        return MessageBatchView(
            BlockRows(received([b"x"], topic_name=topic, first_entry_id=entry), range(1))
            for topic, entry in batch
        )

    def has_message_available(self) -> bool:
        return bool(self.batches)


class Waiting(Scripted):
    """Says for ever that more is available, while each answer takes a second."""

    def __init__(self, clock: ManualClock, *batches: list[tuple[str, int]]) -> None:
        super().__init__(*batches)
        self.answers = 0
        self._clock = clock

    def batch_receive(self) -> MessageBatchView:
        self.answers += 1
        self._clock.advance(1000)
        return super().batch_receive()

    def has_message_available(self) -> bool:
        return True


def found(consumer: Scripted, clock: ManualClock | None = None) -> list[tuple[str, int]]:
    return [
        (part.block.topic_name, part.block.first_entry_id)
        for parts in stored_letters(consumer, ENDS, clock)
        for part in parts
    ]


def test_a_partition_that_fills_does_not_hide_what_another_has() -> None:
    consumer = Scripted([("a", 6)], [("a", 7)], [], [("b", 4), ("a", 8)], [("b", 5)])
    assert found(consumer) == [("b", 4), ("b", 5)]


def test_it_ends_when_all_partitions_are_past_their_ends() -> None:
    consumer = Scripted([("a", 5)], [("b", 6)], [("a", 6)], [("a", 7)])
    assert found(consumer) == [("a", 5)]
    assert consumer.batches, "what comes later is not asked for"


def test_a_partition_that_is_added_meanwhile_has_nothing_old() -> None:
    consumer = Scripted([("new", 0), ("a", 4)], [("new", 1)], [("b", 5), ("new", 2)], [("a", 5)])
    assert found(consumer) == [("a", 4), ("b", 5), ("a", 5)]


def test_what_others_hold_is_not_waited_for_longer_than_its_time() -> None:
    clock = ManualClock()
    idle: list[list[tuple[str, int]]] = [[]] * (NOTHING_OLD_MS // 1000 - 1)
    consumer = Waiting(clock, [("a", 1)], *idle, [("b", 1)], [("a", 9)])
    assert found(consumer, clock) == [("a", 1), ("b", 1)], "each that comes begins the time anew"
    assert consumer.answers == 2 + len(idle) + NOTHING_OLD_MS // 1000 + 1
