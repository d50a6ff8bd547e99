"""Sending the bytes of blocks that are passing to a consumer."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.delivery_senders import MAX_BODY_BYTES, MAX_GRANTS_PER_PACKET
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.session_table import Session

MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""Unsent bytes of a connection above which its consumer gets nothing."""

Bodies = dict[tuple[int, int], memoryview]
"""The bytes of blocks by (ledger id, first entry id)."""


class PassingSender:
    """Writes a grant's bytes to the carrier at once; nothing waits here.

    `bodies` holds the blocks that are passing just now.
    """

    has_unsent = False

    def __init__(self, session: Session, encoder: DeliverEncoder, bodies: Bodies) -> None:
        self._session = session
        self._encode = encoder.encode
        self._bodies = bodies

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        part: list[Grant] = []
        size = 0
        for grant in grants:
            if part and (size + grant.block.length > MAX_BODY_BYTES or len(part) == MAX_GRANTS_PER_PACKET):
                self._send(part, generation)
                part, size = [], 0
            part.append(grant)
            size += grant.block.length
        if part:
            self._send(part, generation)

    def _send(self, part: list[Grant], generation: int) -> None:
        body = [self._bodies[grant.block.ledger_id, grant.block.first_entry_id] for grant in part]
        self._session.send(self._encode(generation, part, body))

    def drop_below(self, generation: int) -> None:
        """Drop nothing: all is sent."""

    def end(self) -> None:
        """Drop nothing: all is sent."""


def has_room(endpoint: ConsumerEndpoint) -> bool:
    """Return whether a consumer is open, and its connection not full."""
    carrier = endpoint.session.carrier
    if carrier is None or not endpoint.is_on_carrier:
        return False
    return carrier.unsent_bytes <= MAX_UNSENT_BYTES
