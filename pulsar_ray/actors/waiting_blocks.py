"""Blocks that a partition has admitted and not begun to write."""

from __future__ import annotations

from typing import NamedTuple

from pulsar_ray.actors.producer_endpoint import ProducerEndpoint
from pulsar_ray.format.block import BlockHeader
from pulsar_ray.session.session_table import Carrier

MAX_GROUP_BYTES = 32 * 1024 * 1024


class Admitted(NamedTuple):
    """A block on its way to the disk; until it is answered it counts against what the actor may hold."""

    producer: ProducerEndpoint
    header: BlockHeader
    block: memoryview
    carrier: Carrier | None


class WaitingBlocks:
    """In the order they came; what they may take is bounded by their carriers."""

    def __init__(self) -> None:
        self._blocks: list[Admitted] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._blocks)

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return self._bytes

    def append(self, admitted: Admitted) -> None:
        """The newest."""
        self._blocks.append(admitted)
        self._bytes += len(admitted.block)

    def has(self, header: BlockHeader) -> bool:
        """Whether this block waits."""
        return any(
            waiting.header.incarnation == header.incarnation and waiting.header.entry_seq == header.entry_seq
            for waiting in self._blocks
        )

    def next_seqs(self, incarnation: int) -> list[int]:
        """What a producer's entry_seq is behind each of its blocks."""
        headers = [admitted.header for admitted in self._blocks]
        return [h.entry_seq + h.entries for h in headers if h.incarnation == incarnation]

    def take_group(self) -> list[Admitted]:
        """All of them, or as many of the oldest as one write may have; one at least."""
        if self._bytes <= MAX_GROUP_BYTES:
            group, self._blocks = self._blocks, []
            self._bytes = 0
            return group
        size = 0
        for taken, admitted in enumerate(self._blocks):  # noqa: B007
            size += len(admitted.block)
            if size > MAX_GROUP_BYTES:
                break
        group, self._blocks = self._blocks[: taken + 1], self._blocks[taken + 1 :]
        self._bytes -= size
        return group
