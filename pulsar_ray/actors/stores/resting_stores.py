"""Stores that were emptied rest after a while (ADR 0146).

Ray may take their nodes then.
"""

from __future__ import annotations

from collections.abc import Collection

from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.stores.stores import Stores

REST_AFTER_S = 60.0
"""Somebody may change their mind, and consumers read what has moved where it was."""


class RestingStores:
    """Ends the actors of stores that are drained and empty.

    `ready` are those of which nothing is left to be done on their disks. Times are those of a monotonic
    clock.
    """

    def __init__(self, stores: Stores, actors: BrokerActors) -> None:
        self._stores = stores
        self._actors = actors
        self._since_s: dict[str, float] = {}

    async def look(self, ready: Collection[str], now_s: float) -> None:
        """End those that have been empty for long enough, and beside which nothing runs."""
        membership = self._stores.membership
        wanted = membership.catalog.drained_stores() & self._stores.known.keys()
        wanted.discard(membership.catalog_store_id)
        empty = [each for each in ready if each in wanted and not self._actors.beside(each)]
        self._since_s = {each: self._since_s.get(each, now_s) for each in empty}
        for store_id in empty:
            if now_s - self._since_s[store_id] >= REST_AFTER_S:
                await self._stores.let_rest(store_id)
