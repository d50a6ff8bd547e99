"""Keeps a producer's sealed blocks until they are confirmed, in entry_seq order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.log.producer_incarnations import WINDOW_BLOCKS

BlockDone = Callable[[int, int, PulsarException | None], None]
"""done(ledger id, first entry id, None) once durable, or done(-1, -1, error)."""
Outcome = tuple[int, int, PulsarException | None]


class UnconfirmedBlock:
    """One encoded block, kept until its receipt: it may be sent again."""

    __slots__ = ("buffers", "done", "entries", "entry_seq", "messages", "outcome", "sealed_s", "size")

    def __init__(
        self,
        entry_seq: int,
        entries: int,
        messages: int,
        buffers: list[Any],
        size: int,
        sealed_s: float,
        done: BlockDone,
    ) -> None:
        self.entry_seq = entry_seq
        self.entries = entries
        self.messages = messages
        self.buffers = buffers
        self.size = size
        self.sealed_s = sealed_s
        self.done = done
        self.outcome: Outcome | None = None

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` behind `done`, whatever the outcome."""
        before = self.done

        def done(ledger_id: int, entry_id: int, error: PulsarException | None) -> None:
            before(ledger_id, entry_id, error)
            callback()

        self.done = done


class UnconfirmedBlocks:
    """A queue whose first `sent` blocks were written to the present carrier.

    The producer's state lock guards it.
    """

    __slots__ = ("_blocks", "has_unsent", "messages", "sent", "size")

    def __init__(self) -> None:
        self._blocks: deque[UnconfirmedBlock] = deque()
        self.sent = 0
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
        self.has_unsent = self.sent < WINDOW_BLOCKS

    def next_unsent(self) -> UnconfirmedBlock | None:
        """The next block to write, which counts as written from now on."""
        if not self.has_unsent:
            return None
        block = self._blocks[self.sent]
        self.sent += 1
        self.has_unsent = self.sent < len(self._blocks) and self.sent < WINDOW_BLOCKS
        return block

    @property
    def first(self) -> UnconfirmedBlock | None:
        """The oldest block."""
        return self._blocks[0] if self._blocks else None

    @property
    def last(self) -> UnconfirmedBlock | None:
        """The newest block."""
        return self._blocks[-1] if self._blocks else None

    def answer(self, entry_seq: int, outcome: Outcome) -> None:
        """A receipt or refusal came; one that came before is harmless."""
        for block in self._blocks:
            if block.entry_seq == entry_seq:
                block.outcome = outcome
                return
            if block.entry_seq > entry_seq:
                return

    def take_settled(self) -> list[UnconfirmedBlock]:
        """Take out the answered blocks at the front.

        After a cut an answer may overtake the one of an earlier block; it waits, so that callbacks come in
        order.
        """
        settled: list[UnconfirmedBlock] = []
        blocks = self._blocks
        while blocks and blocks[0].outcome is not None:
            block = blocks.popleft()
            if self.sent:
                self.sent -= 1
            self.messages -= block.messages
            self.size -= block.size
            settled.append(block)
        self.has_unsent = self.sent < len(blocks) and self.sent < WINDOW_BLOCKS
        return settled

    def resend(self) -> None:
        """Mark everything as unwritten: the carrier is gone.

        Blocks that were refused out of turn are written again too, or their entry_seq would be missed.
        """
        self.sent = 0
        self.has_unsent = bool(self._blocks)
        for block in self._blocks:
            block.outcome = None

    def take_all(self) -> list[UnconfirmedBlock]:
        """Give up: empty the queue."""
        blocks = list(self._blocks)
        self._blocks.clear()
        self.sent = self.messages = self.size = 0
        self.has_unsent = False
        return blocks
