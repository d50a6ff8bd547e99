"""Writes the blocks of one producer in order, one thread at a time."""

from __future__ import annotations

import threading
from typing import Protocol

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock
from pulsar_ray.session.packet_encoders import PublishPackets
from pulsar_ray.transport.carriers import Connection


class BlockSource(Protocol):
    """A queue of blocks, with a lock of its own."""

    def next_block(self) -> tuple[UnconfirmedBlock, Connection] | None:
        """Take the next block to write, with its carrier; None without one."""

    def has_work(self) -> bool:
        """Whether a block may be written now.

        It is asked without the lock: threads that add work ask again behind it.
        """


class BlockWriter:
    """Takes blocks from its source and writes them; threads take turns.

    A thread takes the write role if no other one has it, and never waits for it, so the I/O thread cannot be
    held up by a thread that a full socket blocks. The holder looks for more work when it has given the role
    back, so no block stays that another thread left to it.
    """

    __slots__ = ("_link", "_packets", "_role", "_source")

    def __init__(self, link: EndpointLink, producer_id: int, source: BlockSource) -> None:
        self._link = link
        self._packets = PublishPackets(producer_id)
        self._source = source
        self._role = threading.Lock()

    def forked(self) -> None:
        """Take a new role in a forked child, where another thread's stays taken."""
        self._role = threading.Lock()

    def write_if_any(self) -> None:
        """Write if there is work; costs no lock if there is none."""
        if self._source.has_work():
            self.write()

    def write(self, *, waits: bool = False) -> None:
        """Write until nothing may be written, or another thread writes.

        `waits`: the caller is about to wait for a receipt.
        """
        source = self._source
        while self._role.acquire(blocking=False):
            try:
                if (work := source.next_block()) is not None:
                    block, carrier = work
                    packet = self._packets.encode(block.encoded(), waits=waits)
                    if not self._link.send(packet, only_on=carrier, waits=waits):
                        return
            finally:
                self._role.release()
            if not source.has_work():
                return
