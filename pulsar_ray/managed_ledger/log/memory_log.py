"""The log of a non-persistent partition: entries pass through it and are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulsar_ray.format.block import BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.managed_ledger.log.commit import AppendResult, LogEnd
from pulsar_ray.managed_ledger.log.producer_incarnations import (
    NO_IDS,
    ProducerIncarnations,
    Repeat,
    Verdict,
)
from pulsar_ray.managed_ledger.log.producer_sequences import ProducerSequences
from pulsar_ray.model.message_id import EARLIEST, Position

Blocks = Sequence[tuple[BlockHeader, Sequence[Buffer]]]
NOT_STORED = EARLIEST


class PassingIncarnations(ProducerIncarnations):
    """Which blocks have passed, for as long as the partition lives; nobody learns a position.

    After a restart producers go on where they are: what was under way is sent again and passes, perhaps for
    the second time.
    """

    def knows(self, incarnation: int) -> bool:
        """True for every producer.

        Refusing one from before a restart would fail its pending messages for nothing.
        """
        return True

    def precedes(self, incarnation: int, entry_seq: int) -> bool:
        """Whether the entry may be the last one that has passed.

        Before the first one of an incarnation any may have: the partition has perhaps restarted since.
        """
        return self.last_entry_seq(incarnation) in (entry_seq, -1)

    def classify(self, incarnation: int, entry_seq: int, rows: int, last_id: int = NO_IDS) -> Verdict:
        """Classify a block as a stored log does; a repeat stands nowhere."""
        verdict = super().classify(incarnation, entry_seq, rows, last_id)
        return Repeat(NOT_STORED) if isinstance(verdict, Repeat) else verdict


class PassingBlocks:
    """One group of blocks on its way through."""

    __slots__ = ("blocks", "total_bytes")

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        self.total_bytes = sum(header.total_length for header, _ in blocks)

    def run(self) -> float:
        """There is nothing to write."""
        return 0.0


class MemoryLog:
    """Stands for a log where nothing is stored.

    `hand_over` gets each group of blocks before its receipts go out.

    Every position it answers is (-1, -1).
    """

    def __init__(self, epoch: int, hand_over: Callable[[Blocks], None]) -> None:
        self.epoch = epoch
        self.incarnations: ProducerIncarnations = PassingIncarnations()
        self.sequences = ProducerSequences()
        """Always off: nothing is stored that could be stored twice."""
        self.readable_position: Position = NOT_STORED
        self._hand_over = hand_over
        self._next_entry_id = 0

    def begin_append(self, blocks: Blocks, now_ms: int) -> PassingBlocks:
        """Number the blocks, so that repeats are known."""
        for header, _ in blocks:
            self.incarnations.record(header, 0, self._next_entry_id, now_ms)
            self._next_entry_id += header.entries
        return PassingBlocks(blocks)

    def finish_append(self, passing: PassingBlocks) -> AppendResult:
        """Hand the blocks over."""
        self.incarnations.keep()
        self._hand_over(passing.blocks)
        return AppendResult([NOT_STORED] * len(passing.blocks), [], LogEnd(NOT_STORED, -1, 0, 0))

    def show(self, end: LogEnd) -> None:
        """Show nothing: there is nothing to read."""

    def fail_append(self, passing: PassingBlocks) -> None:
        """Take back the blocks of a failed append: they may be appended again."""
        self.incarnations.take_back()
