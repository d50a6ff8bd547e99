"""Granting no more than a subscription's dispatch rate."""

from __future__ import annotations

from pulsar_ray.dispatch.consumer import Consumer, DispatchBlock, SuspectGroup
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.grant_maker import GrantMaker
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.model.rate_limit import RateLimit
from pulsar_ray.model.row_sets import RowSet


class RatedGrants:
    """A `GrantSource` that gives consumers no more room than the rate leaves.

    A batch goes whole, and the first grant whatever its bytes: the debt is paid before the next one.
    """

    def __init__(self, granting: GrantMaker, limit: RateLimit) -> None:
        self._granting = granting
        self.blocks = granting.blocks
        self.limit = limit

    @property
    def now_ms(self) -> int:
        return self._granting.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._granting.now_ms = now_ms

    @classmethod
    def of(
        cls, settings: DispatchSettings, granting: GrantMaker, former: RatedGrants | None
    ) -> RatedGrants | None:
        """Make them for the rate that holds now, None if there is none.

        They begin anew only if the rate has changed: then no former debt is paid.
        """
        rates = (settings.dispatch_rate_messages, settings.dispatch_rate_bytes)
        if former is not None and former.limit.is_of(*rates):
            return former
        limit = RateLimit.of(*rates)
        return None if limit is None else cls(granting, limit)

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""
        return min(self._granting.room(consumer), self.limit.messages_left(self.now_ms))

    def room_of_all(self) -> int:
        """How many messages all consumers together may get now, by the limits that they share."""
        return min(self._granting.room_of_all(), self.limit.messages_left(self.now_ms))

    def grant(self, consumer: Consumer, block: DispatchBlock, limit: int) -> Grant:
        """See GrantSource."""
        return self._charged(self._granting.grant(consumer, block, limit))

    def grant_taken(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> Grant:
        """See GrantSource."""
        return self._charged(self._granting.grant_taken(consumer, block, rows, count))

    def room_on_trial(self, consumer: Consumer) -> int:
        """See GrantSource."""
        return min(self._granting.room_on_trial(consumer), self.limit.messages_left(self.now_ms))

    def grant_suspects(
        self, consumer: Consumer, group: SuspectGroup, block: DispatchBlock, rows: RowSet
    ) -> list[Grant]:
        """See GrantSource."""
        return [self._charged(grant) for grant in self._granting.grant_suspects(consumer, group, block, rows)]

    def _charged(self, grant: Grant) -> Grant:
        messages, block = grant.messages, grant.block
        self.limit.take(messages, block.length * messages // block.messages, self.now_ms)
        return grant
