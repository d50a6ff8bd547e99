"""Exclusive: one consumer gets everything, in order."""

from __future__ import annotations

from collections.abc import Collection

from pulsar_ray.dispatch import row_segments
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, PendingBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.policy import GrantSource, rows_that_fit
from pulsar_ray.dispatch.row_segments import Segment, size
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model import row_sets


class SingleActivePolicy:
    """Grants in the order of the log to the active consumer; blocks stay whole within its credit.

    Unacknowledged messages are not limited here, as in Pulsar.
    """

    is_ordered = True
    limits_unacked = False

    def __init__(self) -> None:
        self.must_elect = False
        """Always False where there is only one; consumers came or went since the last election."""
        self.active: Consumer | None = None
        """Who gets the messages."""

    def admit(self, spec: ConsumerSpec, present: Collection[Consumer]) -> None:
        """Raise ConsumerBusy if there is a consumer already."""
        for consumer in present:
            raise ConsumerBusy(
                f"exclusive consumer {consumer.spec.name!r} is already connected, {spec.name!r} is refused: "
                "close it, or subscribe Shared"
            )

    def join(self, consumer: Consumer) -> None:
        self.active = consumer

    def leave(self, consumer: Consumer) -> None:
        if self.active is consumer:
            self.active = None

    def dispatch(self, source: GrantSource) -> list[Grant]:
        """Grant until the consumer has no room or nothing waits."""
        grants: list[Grant] = []
        consumer = self.active
        if consumer is None:
            return grants
        pending = source.pending
        while (pending.waiting_messages or pending.suspects) and (room := source.room(consumer)) > 0:
            block = pending.head()
            suspect = pending.lowest_suspect() if pending.suspects else None
            if suspect is not None and _comes_first(suspect, block):
                if consumer.unacked == 0:
                    grants.append(source.grant_suspect(consumer, suspect))
                break
            if block is None:
                break
            fitting = size(block.waiting) if suspect is None else _rows_in_order(block)
            if fitting > room:
                fitting = rows_that_fit(consumer, block, fitting, room)
            if not fitting:
                break
            grants.append(source.grant(consumer, block, fitting))
        return grants


def _comes_first(suspect: PendingBlock, block: PendingBlock | None) -> bool:
    if block is None or suspect.key < block.key:
        return True
    return suspect is block and _first(suspect.suspects) < _first(block.waiting)


def _rows_in_order(block: PendingBlock) -> int:
    """The waiting rows of a block before its first suspect."""
    if not block.suspects:
        return size(block.waiting)
    before = (1 << _first(block.suspects)) - 1
    return (row_segments.rows_of(block.waiting) & before).bit_count()


def _first(segments: list[Segment]) -> int:
    return row_sets.first(row_segments.rows_of(segments))
