"""Blocks that a partition has admitted and not begun to write."""

from __future__ import annotations

from typing import TypeAlias

from pulsar_ray.broker.partition.producer_endpoint import ProducerEndpoint
from pulsar_ray.format.block import BlockHeader
from pulsar_ray.session.session_table import Carrier

MAX_GROUP_BYTES = 32 * 1024 * 1024

Admitted: TypeAlias = tuple[ProducerEndpoint, BlockHeader, memoryview, Carrier | None]
"""A block on its way to the disk.

Until it is answered it counts against the bytes that may be held of its carrier.
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

    def take_group(self) -> list[Admitted]:
        """Take as many of the oldest blocks as one write may have; one at least."""
        if self.size_bytes <= MAX_GROUP_BYTES:
            group, self._blocks = self._blocks, []
            self.size_bytes = 0
            return group
        size = 0
        for taken, (_, header, *_) in enumerate(self._blocks):  # noqa: B007
            size += header.total_length
            if size > MAX_GROUP_BYTES:
                break
        group, self._blocks = self._blocks[: taken + 1], self._blocks[taken + 1 :]
        self.size_bytes -= size
        return group
