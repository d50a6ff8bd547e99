"""Granting no more than a subscription's dispatch rate."""

from __future__ import annotations

from pulsar_ray.dispatch.consumer import Consumer, DispatchBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.grant_maker import GrantMaker
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
        self.now_ms = 0

    def room(self, consumer: Consumer) -> int:
        """How many messages a consumer may get now; 0 or less: none."""
        return min(self._granting.room(consumer), self.limit.messages_left(self.now_ms))

    def grant(self, consumer: Consumer, block: DispatchBlock, limit: int) -> Grant:
        """See GrantSource."""
        return self._charged(self._granting.grant(consumer, block, limit))

    def grant_taken(self, consumer: Consumer, block: DispatchBlock, rows: RowSet, count: int) -> Grant:
        """See GrantSource."""
        return self._charged(self._granting.grant_taken(consumer, block, rows, count))

    def grant_suspect(self, consumer: Consumer, block: DispatchBlock, row: int | None = None) -> Grant:
        """See GrantSource."""
        return self._charged(self._granting.grant_suspect(consumer, block, row))

    def _charged(self, grant: Grant) -> Grant:
        messages, block = grant.messages, grant.block
        self.limit.take(messages, block.length * messages // block.messages, self.now_ms)
        return grant
