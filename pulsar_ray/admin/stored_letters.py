"""Receiving what a subscription has left of messages that were stored at some moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from pulsar_ray.client.received.message import BlockRows
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.clock import Clock, SystemClock
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.message_id import EARLIEST, Position, entry_at

NOTHING_OLD_MS = 30_000
"""Messages that do not come for so long are held by others.

Or this consumer holds as many as it may.
"""


class Receiver(Protocol):
    """The part of a consumer that this needs."""

    def batch_receive(self) -> MessageBatchView: ...

    def has_message_available(self) -> bool: ...


def stored_letters(
    consumer: Receiver, ends: Mapping[str, Position], clock: Clock | None = None
) -> Iterator[list[BlockRows]]:
    """The messages up to the end of each partition, some at a time.

    Later ones stay unacknowledged and go back when the consumer closes, as do those that cannot be decoded. A
    partition is done when its end or something behind it has come: one that fills all the time does not hide
    what the others have. A partition without an end was added later, and has nothing old.
    """
    unfinished = {topic for topic, end in ends.items() if end.entry_id >= 0}
    clock = clock or SystemClock()
    last_old_ms = clock.monotonic_ms()
    while True:
        try:
            received = consumer.batch_receive()
        except PulsarException as error:
            if error.message_id is None:
                raise
            place = Position(error.message_id.ledger_id(), error.message_id.entry_id())
            if place >= ends.get(error.message_id.topic_name, EARLIEST):
                unfinished.discard(error.message_id.topic_name)
            continue
        old: list[BlockRows] = []
        for part in received.parts:
            topic, position = part.block.topic_name, _position(part)
            end = ends.get(topic, EARLIEST)
            if position <= end:
                old.append(part)
            if position >= end:
                unfinished.discard(topic)
        if old:
            yield old
            last_old_ms = clock.monotonic_ms()
            continue
        is_over = not unfinished if received.parts else not consumer.has_message_available()
        if is_over or clock.monotonic_ms() - last_old_ms > NOTHING_OLD_MS:
            return


def _position(part: BlockRows) -> Position:
    block, rows = part
    last = block.first_entry_id if block.is_batch else entry_at(block.first_entry_id, rows[-1])
    return Position(block.ledger_id, last)
