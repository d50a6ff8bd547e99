"""Which delivered messages have failed more often than their consumer's policy allows."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.client.received.queued_delivery import QueuedDelivery
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet


def rows_over_limit(delivery: QueuedDelivery, max_failures: int) -> RowSet:
    """The delivered rows whose own failures exceed the limit.

    Failures of others in their batch do not count.
    """
    if delivery.redelivery_count <= max_failures:
        return 0
    if not delivery.row_failures:
        return delivery.rows
    over = [(first, end) for first, end, failures in delivery.row_failures if failures > max_failures]
    return delivery.rows & row_sets.of_ranges(tuple(over))


def split_over_limit(deliveries: Sequence[QueuedDelivery], max_failures: int) -> list[QueuedDelivery]:
    """Make rows over the limit deliveries of their own, in place, and mark them."""
    parts: list[QueuedDelivery] = []
    for delivery in deliveries:
        over = rows_over_limit(delivery, max_failures)
        if not over:
            parts.append(delivery)
        elif over == delivery.rows:
            parts.append(delivery._replace(is_over_limit=True))
        else:
            parts += _runs(delivery, over)
    return parts


def _runs(delivery: QueuedDelivery, over: RowSet) -> list[QueuedDelivery]:
    parts: list[QueuedDelivery] = []
    left = delivery.rows
    while left:
        is_over = bool(left & -left & over)
        # Rows of the same kind up to the first one of the other.
        others = left & ~over if is_over else left & over
        run = left & ((others & -others) - 1) if others else left
        parts.append(delivery._replace(rows=run, is_over_limit=is_over))
        left ^= run
    return parts
