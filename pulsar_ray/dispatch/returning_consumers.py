"""Consumers that may come back after a restart, and what they report to hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.managed_ledger.cursor.managed_cursor import KnownConsumer
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.row_ranges import RowRanges

ReportedRows = tuple[int, int, Sequence[tuple[int, int]]]
"""(ledger id, first entry id of a block, rows) that a consumer reports to hold."""
Claim = tuple[int, RowRanges, bool]
"""(incarnation, rows, whether the consumer was given a part of their batch only)."""


class ReturningConsumers:
    """Holds dispatching back until all known consumers are back, or the grace is over.

    Claims on blocks that were not read yet wait here until they are.
    """

    def __init__(self, known: Iterable[KnownConsumer], grace_until_ms: int) -> None:
        self.awaited = {consumer.incarnation: consumer for consumer in known}
        """By id: those that may still come back."""
        self.grace_until_ms = grace_until_ms
        """When waiting ends, if anybody is awaited then."""
        self.claims: dict[tuple[int, int], list[Claim]] = {}

    def is_waiting(self, now_ms: int) -> bool:
        return bool(self.awaited) and now_ms < self.grace_until_ms

    def keeps_out(self, spec: ConsumerSpec) -> bool:
        """Whether somebody who is awaited excludes this consumer, or may do so.

        Which ranges the awaited ones of a Key_Shared subscription declared is not known before they are back.
        """
        is_new = spec.incarnation not in self.awaited
        is_alone = spec.consumer_type == ConsumerType.Exclusive
        may_overlap = spec.consumer_type == ConsumerType.KeyShared and is_new
        return any(
            consumer.incarnation != spec.incarnation
            and (consumer.consumer_type != spec.consumer_type or is_alone or may_overlap)
            for consumer in self.awaited.values()
        )

    def fill_up(self, incarnation: int, present: int, limit: int) -> bool:
        """Whether another consumer has room only as long as they are not back.

        `present` are attached; `limit` is how many there may be, 0 for any number.
        """
        return incarnation not in self.awaited and present < limit <= present + len(self.awaited)

    def came_back(self, incarnation: int) -> bool:
        """Wait for a consumer no more; returns whether it was awaited."""
        return self.awaited.pop(incarnation, None) is not None

    def stop_waiting(self, now_ms: int) -> list[int]:
        """Once the grace period is over: the consumers that did not come."""
        if now_ms < self.grace_until_ms:
            return []
        missing = list(self.awaited)
        self.awaited.clear()
        return missing

    def claim(self, incarnation: int, key: tuple[int, int], rows: RowRanges, *, is_part: bool) -> None:
        """Note rows of a block that was not read yet."""
        self.claims.setdefault(key, []).append((incarnation, rows, is_part))

    def has_claims(self, incarnation: int) -> bool:
        """Whether blocks this consumer holds are still to be read."""
        return any(incarnation == claimant for claims in self.claims.values() for claimant, *_ in claims)

    def is_claimed(self, incarnation: int, key: tuple[int, int]) -> bool:
        """Whether this consumer holds something of a block that is still to be read."""
        return any(incarnation == claimant for claimant, *_ in self.claims.get(key, ()))

    def drop_below(self, position: tuple[int, int]) -> None:
        """Everything below was read: claims there name nothing that is unacknowledged."""
        for stale in [claimed for claimed in self.claims if claimed < position]:
            del self.claims[stale]

    def forget(self, incarnation: int) -> None:
        """The consumer is gone; what it claimed is free."""
        for key, claims in list(self.claims.items()):
            left = [claim for claim in claims if claim[0] != incarnation]
            if left:
                self.claims[key] = left
            else:
                del self.claims[key]
