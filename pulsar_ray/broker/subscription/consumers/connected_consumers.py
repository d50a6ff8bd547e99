"""The consumers that are connected to one subscription."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.dispatch.grant import DropQueue
from pulsar_ray.errors import BrokerMetadataError
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

    def sessions_beside(self, session: Session) -> list[Session]:
        """Return the sessions of the other connected consumers."""
        return [endpoint.session for endpoint in self.values() if endpoint.session is not session]

    def check_sole(self) -> None:
        """Raise BrokerMetadataError, as Pulsar does, if several consumers are connected."""
        if len(self) > 1:
            raise BrokerMetadataError(
                "unsubscribe: other consumers are connected to the subscription; close them first"
            )
