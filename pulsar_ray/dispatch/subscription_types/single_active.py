"""Exclusive: one consumer gets everything, in order."""

from __future__ import annotations

from collections.abc import Collection

from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.subscription_types.policy import GrantSource, rows_that_fit
from pulsar_ray.dispatch.suspects.turns import (
    clear_outlived,
    grant_waiting,
    may_try_in_order,
    next_run,
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
        clear_outlived(consumer, source)
        while (run := next_run(source.blocks)) is not None:
            block, rows, group = run
            if group is not None:
                before = len(grants)
                if may_try_in_order(consumer, group, source.now_ms):
                    grant_waiting(consumer, group, [(block.key, rows)], source, grants)
                if len(grants) == before:
                    break
                continue
            if (room := source.room(consumer)) <= 0:
                break
            fitting = rows.bit_count()
            if fitting > room:
                fitting = rows_that_fit(consumer, block, fitting, room)
            if not fitting:
                break
            grants.append(source.grant(consumer, block, fitting))
        return grants
