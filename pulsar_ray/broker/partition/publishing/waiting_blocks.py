"""Blocks that a partition has admitted and not begun to write."""

from __future__ import annotations

from typing import TypeAlias

from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint
from pulsar_ray.format.block import CHUNK, BlockHeader
from pulsar_ray.session.session_table import Carrier

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
