"""Acknowledgments on a non-persistent topic: accepted without effect, as in Pulsar.

Received messages are stored nowhere, so nothing of them can be acknowledged or come again.
"""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_ray.client.acks.ack_tracker import WHOLE_ENTRY, AckBatch
from pulsar_ray.client.acks.nack_tracker import Nack
from pulsar_ray.client.received.block_rows import Rows
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet


class IgnoredAcks:
    """Takes the acknowledgments that an AckTracker would gather, and keeps none."""

    __slots__ = ("block", "count", "flags")

    def __init__(self) -> None:
        self.block: ReceivedBlock | None = None
        self.flags = bytearray()
        self.count = 0

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Ignore an entry."""

    def add_range(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> None:
        """Ignore neighbouring entries."""

    def share(self, ledger_id: int, entry_id: int) -> None:
        """Ignore a batch."""

    def repeat_shared(self) -> None:
        """Do nothing: no batch was shared."""

    def add_message(self, block: ReceivedBlock, row: int) -> None:
        """Ignore a message."""

    def add_row(self, ledger_id: int, entry_id: int, row: int, batch_size: int) -> None:
        """Ignore a message of a batch."""

    def add_rows(
        self, ledger_id: int, entry_id: int, rows: Iterable[tuple[int, int]], batch_size: int = 0
    ) -> None:
        """Ignore messages of a batch."""

    def add_part(self, block: ReceivedBlock, rows: Rows) -> None:
        """Ignore rows of a block."""

    def add_moved(self, block: ReceivedBlock, rows: Rows) -> None:
        """Ignore rows of a block."""

    def add_cumulative(
        self, ledger_id: int, entry_id: int, row: int = WHOLE_ENTRY, batch_size: int = 0
    ) -> None:
        """Ignore a position."""

    def outstanding_rows(self, ledger_id: int, entry_id: int, rows: RowSet, batch_size: int = 0) -> RowSet:
        """All of these rows: none was acknowledged."""
        return rows

    def entries_in(self, ledger_id: int, first: int, count: int) -> RowSet:
        """None of these entries."""
        return 0

    def drain(self) -> AckBatch | None:
        """None: nothing was gathered."""
        return None

    def clear(self) -> None:
        """Nothing is there to forget."""


class IgnoredNacks:
    """Takes the negative acknowledgments that a NackTracker would hold, and keeps none."""

    __slots__ = ()

    has_backoff = False
    """None is asked for the delay of what does not come again."""
    messages = 0

    def delay_ms(self, failures: int) -> int:
        """0: nothing comes again."""
        return 0

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        redelivery_count: int,
        now_ms: int,
        rows: RowRanges = (),
        delay_ms: int | None = None,
    ) -> None:
        """Ignore a failed message."""

    def __len__(self) -> int:
        return 0

    def holds(self, ledger_id: int, entry_id: int, redelivery_count: int) -> bool:
        """False: nothing waits."""
        return False

    def take(self, ledger_id: int, entry_id: int, redelivery_count: int) -> RowRanges:
        """No rows: nothing waits."""
        return ()

    def next_deadline_ms(self) -> int | None:
        """None: nothing waits."""
        return None

    def due(self, now_ms: float) -> list[Nack]:
        """Nothing is due."""
        return []

    def clear(self) -> None:
        """Nothing is there to forget."""
