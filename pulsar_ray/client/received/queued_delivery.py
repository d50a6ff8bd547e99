"""A delivery in the receiver queue, and its source as the queue knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.row_sets import RowSet


class CreditAccount(Protocol):
    """Credit that a dispatcher was given."""

    due: int
    """From so many consumed messages on there may be something to report."""


class DeliverySource(Protocol):
    """Deliveries of one partition, as the receiver queue and the consumer above it use them."""

    consumed: int
    """Messages that left the queue, since the consumer's incarnation began."""
    generation: int
    """Seeks and rewinds by now: deliveries of an earlier generation are void."""
    decode: Callable[[QueuedDelivery], ReceivedBlock]

    @property
    def credit(self) -> CreditAccount: ...

    def send_credit(self, *, always: bool = False) -> None: ...

    def outstanding_rows(self, delivery: QueuedDelivery, batch_size: int) -> RowSet: ...

    def leave_out(self, delivery: QueuedDelivery, error: PulsarException) -> bool: ...

    def is_trimmed(self, delivery: QueuedDelivery) -> bool: ...


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

    @property
    def key(self) -> tuple[int, int]:
        """The place of the block: ledger id and first entry id."""
        return self.ledger_id, self.first_entry_id


class Origin(NamedTuple):
    """Where a message came from, so that it can be given back."""

    source: DeliverySource
    generation: int
