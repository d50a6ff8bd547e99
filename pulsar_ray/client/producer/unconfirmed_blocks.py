"""Keeps a producer's sealed blocks until they are confirmed, in entry_seq order."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pulsar_ray.client.producer.send_callbacks import BlockDone
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.payload import rest_of_block
from pulsar_ray.managed_ledger.log.producer_incarnations import WINDOW_BLOCKS
from pulsar_ray.model.metric_catalogue import CLIENT_SEND_LATENCY
from pulsar_ray.model.traffic import BucketCounts

MAX_SENT_BYTES = 32 * 1024 * 1024
"""No more is written while so much has no receipt.

A large message does not go into buffers at once.
"""

Outcome = tuple[int, int, PulsarException | None]


class UnconfirmedBlock:
    """One encoded block, kept until its receipt: it may be sent again."""

    __slots__ = (
        "_encode",
        "buffers",
        "done",
        "entries",
        "entry_seq",
        "messages",
        "outcome",
        "sealed_s",
        "size",
        "stored_before",
    )

    def __init__(
        self,
        entry_seq: int,
        entries: int,
        messages: int,
        buffers: list[Any],
        size: int,
        sealed_s: float,
        done: BlockDone,
        encode: Callable[[], list[Any]] | None = None,
    ) -> None:
        self.entry_seq = entry_seq
        self.entries = entries
        self.messages = messages
        self.buffers = buffers
        self.size = size
        self.sealed_s = sealed_s
        """Since when it waits to be confirmed; 0 before a chunk is written."""
        self.done = done
        self.outcome: Outcome | None = None
        self._encode = encode
        self.stored_before = 0
        """How many of its messages are left out: they had been stored before."""

    def encoded(self) -> list[Any]:
        """Its buffers, to be written; those of a chunk are made now."""
        return self.buffers if self._encode is None else self._encode()

    def complete(self) -> None:
        """Call `done` with the outcome."""
        assert self.outcome is not None
        self.done(*self.outcome, self.stored_before)

    def drop_stored(self, stored_id: int) -> None:
        """Leave out the messages with sequence ids up to this one."""
        rest = rest_of_block(self.buffers, stored_id)
        self.buffers = rest.buffers
        self.stored_before += rest.dropped_messages
        self.entry_seq += rest.dropped_entries
        self.entries -= rest.dropped_entries

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` behind `done`, whatever the outcome."""
        before = self.done

        def done(ledger_id: int, entry_id: int, error: PulsarException | None, stored_before: int) -> None:
            before(ledger_id, entry_id, error, stored_before)
            callback()

        self.done = done


class UnconfirmedBlocks:
    """A queue whose first `sent` blocks were written to the present carrier.

    The producer's state lock guards it.
    """

    __slots__ = (
        "_blocks",
        "_monotonic_s",
        "_sent_bytes",
        "has_unsent",
        "latency",
        "messages",
        "sent",
        "size",
    )

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._blocks: deque[UnconfirmedBlock] = deque()
        self.latency = BucketCounts(CLIENT_SEND_LATENCY.buckets)
        """From the sealing of blocks to their receipts, in seconds."""
        self.sent = 0
        self._sent_bytes = 0
        self.messages = 0
        self.size = 0
        self.has_unsent = False
        """True if a block waits to be written, and may be.

        The partition must remember all blocks that are written.
        """

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[UnconfirmedBlock]:
        return iter(self._blocks)

    def add(self, block: UnconfirmedBlock) -> None:
        """A block was sealed."""
        self._blocks.append(block)
        self.messages += block.messages
        self.size += block.size
        self._look_for_unsent()

    def next_unsent(self) -> UnconfirmedBlock | None:
        """The next block to write, which counts as written from now on."""
        if not self.has_unsent:
            return None
        block = self._blocks[self.sent]
        block.sealed_s = block.sealed_s or self._monotonic_s()
        self.sent += 1
        self._sent_bytes += block.size
        self._look_for_unsent()
        return block

    def _look_for_unsent(self) -> None:
        self.has_unsent = (
            self.sent < len(self._blocks) and self.sent < WINDOW_BLOCKS and self._sent_bytes < MAX_SENT_BYTES
        )

    @property
    def first(self) -> UnconfirmedBlock | None:
        """The oldest block."""
        return self._blocks[0] if self._blocks else None

    @property
    def last(self) -> UnconfirmedBlock | None:
        """The newest block."""
        return self._blocks[-1] if self._blocks else None

    def find(self, entry_seq: int) -> UnconfirmedBlock | None:
        """The block with this entry_seq."""
        return next((block for block in self._blocks if block.entry_seq == entry_seq), None)

    def confirm(self, rows: Sequence[tuple[int, int, int, int, int]]) -> list[UnconfirmedBlock]:
        """Note the receipts of blocks, and take out the answered ones at the front.

        A receipt that came before is harmless. They are in the order of the blocks, but for those that
        overtook others. After a cut an answer may overtake the one of an earlier block; it waits, so that
        callbacks come in order.
        """
        blocks = iter(self._blocks)
        block = next(blocks, None)
        last_seq = -1
        for _, entry_seq, _, ledger_id, entry_id in rows:
            if entry_seq < last_seq:
                blocks = iter(self._blocks)
                block = next(blocks, None)
            last_seq = entry_seq
            while block is not None and block.entry_seq < entry_seq:
                block = next(blocks, None)
            if block is not None and block.entry_seq == entry_seq:
                block.outcome = (ledger_id, entry_id, None)
        settled: list[UnconfirmedBlock] = []
        now_s = self._monotonic_s()
        while self._blocks and (outcome := self._blocks[0].outcome) is not None:
            block = self._blocks.popleft()
            if block.sealed_s and outcome[2] is None:
                self.latency.observe(now_s - block.sealed_s)
            if self.sent:
                self.sent -= 1
                self._sent_bytes -= block.size
            self.messages -= block.messages
            self.size -= block.size
            settled.append(block)
        self._look_for_unsent()
        return settled

    def refuse(self, entry_seq: int, error: PulsarException) -> list[UnconfirmedBlock]:
        """Note that a block was refused, as `confirm` does receipts."""
        if (block := self.find(entry_seq)) is not None:
            block.outcome = (-1, -1, error)
        return self.confirm(())

    def resend(self) -> None:
        """Mark everything as unwritten: the carrier is gone.

        Blocks that were refused out of turn are written again too, or their entry_seq would be missed.
        """
        self.sent = self._sent_bytes = 0
        self.has_unsent = bool(self._blocks)
        for block in self._blocks:
            block.outcome = None

    def take_all(self) -> list[UnconfirmedBlock]:
        """Give up: empty the queue."""
        blocks = list(self._blocks)
        self._blocks.clear()
        self.sent = self._sent_bytes = self.messages = self.size = 0
        self.has_unsent = False
        return blocks


class BlockNumbers:
    """Counts the entries of one producer at one partition.

    A partition recognises blocks by the incarnation and a running number per entry.
    """

    __slots__ = ("incarnation", "next_seq", "replaces")

    def __init__(self) -> None:
        self.incarnation = secrets.randbits(63) | 1
        self.replaces = 0
        """The incarnation that was given up, until the partition knows of it.

        The partition then refuses what is left of that one.
        """
        self.next_seq = 0

    def renew(self) -> None:
        """Give this incarnation up and count from 0 in a new one.

        One that was never open is kept: nothing of it was sent, and the partition may know only the one
        that it replaces.
        """
        if self.replaces:
            self.next_seq = 0
            return
        self.replaces = self.incarnation
        self.renew_unreplaced()

    def renew_unreplaced(self) -> None:
        """Count from 0 in a new incarnation, because the partition has forgotten this one.

        Nothing of the former may be unconfirmed.
        """
        self.incarnation = secrets.randbits(63) | 1
        self.next_seq = 0
