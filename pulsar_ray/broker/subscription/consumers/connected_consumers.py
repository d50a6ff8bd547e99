"""The consumers that are connected to one subscription."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.errors import BrokerMetadataError
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.session.session_table import Session

NUMBERING_BITS = 20


class ConnectedConsumers(dict[int, ConsumerEndpoint]):
    """Endpoints by incarnation, with the ids of their numberings.

    Deliveries are numbered anew whenever the dispatcher does not know their consumer. Ids rise with the
    dispatcher's epoch: so a consumer that missed the answer to its attach is not believed to have what it had
    of an earlier numbering.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._ids = itertools.count(epoch << NUMBERING_BITS)
        self._numberings: dict[int, int] = {}

    def numbering(self, incarnation: int, *, is_known: bool) -> int:
        """Return the id of a consumer's numbering: a new one unless the consumer is known."""
        if not is_known:
            self._numberings[incarnation] = next(self._ids)
        return self._numberings[incarnation]

    def put(self, endpoint: ConsumerEndpoint) -> None:
        """Make an endpoint the consumer's, in place of one that it had before."""
        former = self.get(endpoint.incarnation)
        if former is not None:
            former.retire()
            endpoint.dead_letters = former.dead_letters
        self[endpoint.incarnation] = endpoint
        endpoint.session.endpoints[endpoint.consumer_id] = endpoint

    def remove(self, endpoint: ConsumerEndpoint) -> bool:
        """Forget a consumer; False if another endpoint has taken this one's place."""
        if self.get(endpoint.incarnation) is not endpoint:
            return False
        del self[endpoint.incarnation]
        self._numberings.pop(endpoint.incarnation, None)
        return True

    def drop_queues(self, drops: Sequence[DropQueue]) -> None:
        """Have consumers drop their queues."""
        for drop in drops:
            endpoint = self.get(drop.consumer_id)
            if endpoint is not None:
                endpoint.drop_queue(drop)

    def deliver(
        self, grants: Sequence[Grant], generation: int, is_for_one: bool
    ) -> dict[int, Sequence[Grant]]:
        """Send each consumer its grants; returns them by consumer. `is_for_one`: all are for the first's."""
        by_consumer = {grants[0].consumer_id: grants} if is_for_one else _by_consumer(grants)
        for incarnation, granted in by_consumer.items():
            endpoint = self.get(incarnation)
            if endpoint is not None:
                endpoint.deliver(granted, generation)
        return by_consumer

    def notify_active(self, active: Consumer | None, generation: int) -> None:
        """Notify consumers whether they are active, unless they know.

        Only Failover has an active one to tell of.
        """
        if active is None or active.spec.consumer_type != ConsumerType.Failover:
            return
        for incarnation, endpoint in self.items():
            endpoint.notify_active(incarnation == active.spec.consumer_id, generation)

    def sessions_beside(self, session: Session) -> list[Session]:
        """Return the sessions of the other connected consumers."""
        return [endpoint.session for endpoint in self.values() if endpoint.session is not session]

    def names(self, besides: ConsumerEndpoint | None = None) -> str:
        """The names of the connected consumers, sorted; "" if there are none."""
        return ", ".join(sorted(endpoint.name for endpoint in self.values() if endpoint is not besides))

    def check_sole(self, endpoint: ConsumerEndpoint, where: str) -> None:
        """Raise BrokerMetadataError, as Pulsar does, if others are connected to `where`."""
        if others := self.names(besides=endpoint):
            raise BrokerMetadataError(
                f"unsubscribe: other consumers ({others}) are connected to {where}; close them first"
            )


def _by_consumer(grants: Sequence[Grant]) -> dict[int, Sequence[Grant]]:
    found: dict[int, list[Grant]] = {}
    for grant in grants:
        found.setdefault(grant.consumer_id, []).append(grant)
    return dict(found)
