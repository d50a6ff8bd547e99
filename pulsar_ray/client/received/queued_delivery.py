"""A delivery in the receiver queue, and its source as the queue knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pulsar_ray.client.acks.unacked_rows import HeldBlock
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.row_ranges import RowFailures
from pulsar_ray.model.row_sets import RowSet

if TYPE_CHECKING:
    from pulsar_ray.client.received.block_rows import BlockRows, Rows


class HandOverTimer(Protocol):
    """Times how long messages are with the application."""

    def handed_over(self, block: ReceivedBlock, rows: Rows) -> None: ...

    def arm(self) -> None: ...

    def note(self, block: ReceivedBlock, rows: Rows) -> None: ...

    def take_back(self, block: ReceivedBlock, rows: Rows) -> None: ...


class HandOverCounter(Protocol):
    """Shows others how many messages were handed over."""

    @property
    def write(self) -> Callable[[int], None]: ...


class UnreadableDeliveries(Protocol):
    """Holds the blocks of one partition that cannot be decoded."""

    topic: str
    partition: int

    def hold(self, delivery: QueuedDelivery) -> bool: ...

    def at(self, ledger_id: int, entry_id: int) -> HeldBlock | None: ...

    def stored_bytes(self, delivery: QueuedDelivery) -> bytes: ...


class DeliverySource(Protocol):
    """Deliveries of one partition, as the receiver queue and the consumer above it use them."""

    consumed: int
    """Messages that left the queue, since the consumer's incarnation began."""
    generation: int
    """Seeks and rewinds by now: deliveries of an earlier generation are void."""
    decode: Callable[[QueuedDelivery], ReceivedBlock]
    moving: int
    """Messages that are being moved to other topics.

    Others behind them may have been handed over.
    """
    reports_until: int
    """Up to so many consumed messages each is reported before it is handed over."""

    @property
    def unreadable(self) -> UnreadableDeliveries | None:
        """Holds blocks that cannot be decoded, where messages are stored."""

    @property
    def counter(self) -> HandOverCounter | None:
        """Counts what was handed over, where the dispatcher may see it."""

    @property
    def ack_timer(self) -> HandOverTimer | None:
        """Times what is handed over, where there is an ack timeout."""

    def send_credit(self, *, always: bool = False) -> None: ...

    def report_consumed(self, may_wait: int = 0) -> None:
        """Show the dispatcher how many messages left the queue.

        Credit is reported when it is due, or `may_wait` messages later.
        """

    def may_repeat(self, redelivery_count: int) -> bool: ...

    def outstanding_rows(self, delivery: QueuedDelivery, block: ReceivedBlock) -> RowSet: ...

    def left_of(self, part: BlockRows) -> BlockRows: ...

    def is_acknowledged(self, delivery: QueuedDelivery) -> bool: ...

    def leave_out(self, delivery: QueuedDelivery, error: PulsarException) -> bool: ...

    def pass_deleted(self, delivery: QueuedDelivery, error: PulsarException) -> bool: ...

    def is_deleted(self, delivery: QueuedDelivery) -> bool: ...

    def begin_move(self, delivery: QueuedDelivery) -> None: ...

    def end_move(self, delivery: QueuedDelivery) -> None: ...


class QueuedChunk(NamedTuple):
    """A chunk that stands before the last one of its message.

    Without `data` it is read from the file.
    """

    ledger_id: int
    entry_id: int
    path: str
    offset: int
    length: int
    data: memoryview | None


class QueuedDelivery(NamedTuple):
    """Rows of a block that were delivered and wait in the receiver queue."""

    source: DeliverySource
    generation: int
    ledger_id: int
    path: str
    offset: int
    length: int
    first_entry_id: int
    rows: RowSet
    redelivery_count: int
    data: memoryview | None
    row_failures: RowFailures = ()
    """Of a batch, how often single messages failed before."""
    is_over_limit: bool = False
    """Its messages failed too often: they are moved to the dead letter topic."""
    chunks: Sequence[QueuedChunk] = ()
    """The chunks before this block, if it is the last of a message in several."""

    @property
    def key(self) -> tuple[int, int]:
        """The place of the block: ledger id and first entry id."""
        return self.ledger_id, self.first_entry_id


class Origin(NamedTuple):
    """Where a message came from, so that it can be given back."""

    source: DeliverySource
    generation: int
