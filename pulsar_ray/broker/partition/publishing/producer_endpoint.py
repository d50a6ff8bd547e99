"""A connected producer at its partition: its blocks that wait, and what becomes of them.

The outcomes of published blocks are values. `PublishIntake` knows no packets: it tells each producer's
`Outcomes` rows of what is stored, and refusals. Those of a client's producer are packets of its session,
those of the broker's own messages are futures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from pulsar_ray.errors import ProducerFenced, PulsarException
from pulsar_ray.format.block import CHUNK, BlockHeader
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.packet_encoders import PacketEncoder
from pulsar_ray.session.requests import PublishFailed, encode_request
from pulsar_ray.session.session_table import Carrier, Session

StoredRow: TypeAlias = tuple[int, int, int, int, int]
"""Names a block that is stored.

Its fields are producer id, entry_seq, entries, and the position of its first entry.
The position is `DUPLICATE` for a block whose messages had been stored before, by another one.
"""


class Refused(NamedTuple):
    """Names a block that is not stored, and why.

    With NO_BLOCK as entry_seq it is news for the producer.
    """

    producer_id: int
    entry_seq: int
    error: PulsarException
    details: dict[str, Any] | None = None
    """Says what the client has to do about it, beside raising the error; see PublishFailed."""


class Outcomes(Protocol):
    """Takes what became of the blocks of one or several producers, on the owner loop."""

    def stored(self, rows: list[StoredRow]) -> None:
        """Take blocks that are stored and confirmed: nothing takes that back."""

    def refused(self, refusal: Refused) -> None:
        """Take a refusal: the block is not stored, and will not be by itself."""


class SessionOutcomes:
    """Sends a session's producers the outcomes of their blocks.

    Packets that are lost with a carrier are asked for again.
    """

    def __init__(self, session: Session, receipts: PacketEncoder) -> None:
        self._session = session
        self._receipts = receipts

    def stored(self, rows: list[StoredRow]) -> None:
        """Send one receipt for all rows."""
        self._session.send(self._receipts.encode((rows,)))

    def refused(self, refusal: Refused) -> None:
        """Send the refusal by its error's name."""
        producer_id, entry_seq, error, details = refusal
        packet = PublishFailed(producer_id, entry_seq, type(error).__name__, error.text, details)
        self._session.send(encode_request(packet))


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


MAX_GROUP_BYTES = 32 * 1024 * 1024

Admitted: TypeAlias = tuple[ProducerEndpoint, BlockHeader, memoryview, Carrier | None, float]
"""A block on its way to the disk, and when it arrived.

The time is in seconds of any one clock. Until it is answered it counts against the bytes that may be held of
its carrier.
"""


class WaitingBlocks:
    """In the order they came; what they may take is bounded by their carriers."""

    def __init__(self) -> None:
        self._blocks: list[Admitted] = []
        self.size_bytes = 0
        """Of all of them; 0 only if there is none."""

    def append(self, admitted: Admitted) -> None:
        """The newest."""
        self._blocks.append(admitted)
        self.size_bytes += admitted[1].total_length

    def put_back(self, blocks: list[Admitted]) -> None:
        """Blocks of a group that was taken, which are written before all others."""
        self._blocks[:0] = blocks
        self.size_bytes += sum(header.total_length for _, header, *_ in blocks)

    def take_out(self, incarnation: int) -> list[Admitted]:
        """Take the blocks of one incarnation, which are not to be written."""
        taken = [admitted for admitted in self._blocks if admitted[1].incarnation == incarnation]
        if taken:
            self._blocks = [admitted for admitted in self._blocks if admitted[1].incarnation != incarnation]
            self.size_bytes -= sum(header.total_length for _, header, *_ in taken)
        return taken

    def last_sequence_id(self, name: str) -> int:
        """Return the highest sequence id of a producer's blocks; -1 without any."""
        ids = [header.last_sequence_id for producer, header, *_ in self._blocks if producer.name == name]
        return max(ids, default=-1)

    def has(self, header: BlockHeader) -> bool:
        """Whether this block waits."""
        return any(
            waiting.incarnation == header.incarnation and waiting.entry_seq == header.entry_seq
            for _, waiting, *_ in self._blocks
        )

    def next_seqs(self, incarnation: int) -> list[int]:
        """Return a producer's entry_seq behind each of its blocks."""
        headers = [header for _, header, *_ in self._blocks]
        return [h.entry_seq + h.entries for h in headers if h.incarnation == incarnation]

    def take_all(self) -> tuple[list[Admitted], list[Admitted]]:
        """Take all blocks; returns those that go on with messages in chunks, and all others.

        The chunks before them are stored. Without the rest nobody could consume what is stored already.
        """
        going_on: list[Admitted] = []
        others: list[Admitted] = []
        ended: set[int] = set()
        for admitted in self._blocks:
            header = admitted[1]
            chunk = header.metadata().chunk if header.flags & CHUNK else None
            if chunk is not None and chunk.chunk_id > 0 and header.incarnation not in ended:
                going_on.append(admitted)
            else:
                ended.add(header.incarnation)
                others.append(admitted)
        self._blocks, self.size_bytes = [], 0
        return going_on, others

    def take_group(self, room_bytes: int = MAX_GROUP_BYTES) -> list[Admitted]:
        """Take as many of the oldest blocks as one write may have.

        That is one at least, and the one that exceeds `room_bytes` is the last.
        """
        most_bytes = min(MAX_GROUP_BYTES, room_bytes)
        if self.size_bytes <= most_bytes:
            group, self._blocks = self._blocks, []
            self.size_bytes = 0
            return group
        size = 0
        for taken, (_, header, *_) in enumerate(self._blocks):  # noqa: B007
            size += header.total_length
            if size >= most_bytes:
                break
        group, self._blocks = self._blocks[: taken + 1], self._blocks[taken + 1 :]
        self.size_bytes -= size
        return group
