"""A connected producer at its partition."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.session_table import Session


class ProducerEndpoint:
    """One connected producer: its name, incarnation and the entry_seq its next block must carry."""

    __slots__ = (
        "connected_ms",
        "incarnation",
        "is_user_named",
        "metadata",
        "name",
        "next_seq",
        "producer_id",
        "session",
        "traffic",
    )

    def __init__(
        self,
        session: Session,
        producer_id: int,
        name: str,
        incarnation: int,
        next_seq: int,
        traffic: IncomingTraffic,
        connected_ms: int,
    ) -> None:
        self.session = session
        self.producer_id = producer_id
        self.name = name
        self.incarnation = incarnation
        self.next_seq = next_seq
        self.traffic = traffic
        self.connected_ms = connected_ms
        self.metadata: Mapping[str, str] = {}
        self.is_user_named = False
