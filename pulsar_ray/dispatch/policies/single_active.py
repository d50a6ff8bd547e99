"""Exclusive: one consumer gets everything, in order."""

from __future__ import annotations

from collections.abc import Collection

from pulsar_ray.dispatch.blocks.counted_rows import size
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.policies.policy import GrantSource, rows_that_fit
from pulsar_ray.dispatch.suspects.turns import (
    comes_first,
    grant_in_order,
    outlive,
    rows_before_suspects,
)
from pulsar_ray.errors import ConsumerBusy


class SingleActivePolicy:
    """Grants in the order of the log to the active consumer.

    Blocks stay whole within its credit.

    Unacknowledged messages are not limited here, as in Pulsar.
    """

    is_ordered = True
    limits_unacked = False

    def __init__(self) -> None:
        self.must_elect = False
        """Always False where there is only one; consumers came or went since the last election."""
        self.active: Consumer | None = None
        """The consumer that gets the messages."""

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
        blocks = source.blocks
        outlive(consumer, source)
        while blocks.waiting_messages or blocks.suspects.are_waiting:
            block = blocks.head()
            suspect = blocks.suspects.lowest()
            if suspect is not None and comes_first(suspect, block):
                tried = grant_in_order(consumer, block, source)
                grants += tried
                if not tried:
                    break
                continue
            room = source.room(consumer)
            if block is None or room <= 0:
                break
            fitting = size(block.waiting) if suspect is None else rows_before_suspects(block)
            if fitting > room:
                fitting = rows_that_fit(consumer, block, fitting, room)
            if not fitting:
                break
            grants.append(source.grant(consumer, block, fitting))
        return grants
