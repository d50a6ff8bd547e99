"""A connected producer at its partition."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_ray.broker.partition.publishing.outcomes import Outcomes
from pulsar_ray.errors import ProducerFenced
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.session_table import Session


class ProducerEndpoint:
    """One connected producer: its name, incarnation and the entry_seq its next block must carry."""

    __slots__ = (
        "access_mode",
        "connected_ms",
        "eviction",
        "incarnation",
        "is_held",
        "is_user_named",
        "kept_bytes",
        "message_in_chunks",
        "metadata",
        "name",
        "next_seq",
        "outcomes",
        "producer_id",
        "rest_end_seq",
        "session",
        "traffic",
    )

    def __init__(
        self,
        session: Session,
        outcomes: Outcomes,
        producer_id: int,
        name: str,
        incarnation: int,
        next_seq: int,
        traffic: IncomingTraffic,
        connected_ms: int,
    ) -> None:
        self.session = session
        self.outcomes = outcomes
        self.producer_id = producer_id
        self.name = name
        self.incarnation = incarnation
        self.next_seq = next_seq
        self.traffic = traffic
        self.connected_ms = connected_ms
        self.metadata: Mapping[str, str] = {}
        self.kept_bytes = 0
        """Of its name and metadata."""
        self.is_user_named = False
        self.access_mode = ProducerAccessMode.Shared
        self.is_held = False
        """Whether nothing more of it is stored before it opens again."""
        self.message_in_chunks = ""
        """The message of whose chunks some are admitted, and others are to come."""
        self.eviction: ProducerFenced | None = None
        """Why it is evicted, if it is."""
        self.rest_end_seq = 0
        """Above 0: the rest of the block that ends there is to come.

        It begins at `next_seq`, and its front is stored.
        """

    @property
    def awaits_rest(self) -> bool:
        """Whether the rest of a block is to come before anything else."""
        return self.rest_end_seq > 0

    def admitted_chunk(self, chunk: ChunkInfo) -> None:
        """Remember the message whose chunks have begun, until its last one."""
        is_last = chunk.chunk_id + 1 == chunk.num_chunks
        self.message_in_chunks = "" if is_last else chunk.uuid

    def goes_on_with(self, chunk: ChunkInfo | None) -> bool:
        """Whether this chunk continues the message that has begun."""
        return chunk is not None and chunk.chunk_id > 0 and chunk.uuid == self.message_in_chunks

    def may_skip_to(self, entry_seq: int) -> bool:
        """Whether the next block may begin there: the entries before were stored by another one."""
        return entry_seq < self.rest_end_seq
