"""The outcomes of published blocks are values, which sessions turn into packets.

`PublishIntake` knows no packets: it tells each producer's `Outcomes` rows of what is stored, and refusals.
Those of a client's producer are packets of its session, those of the broker's own messages are futures.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

from pulsar_ray.errors import PulsarException
from pulsar_ray.session.packet_encoders import PacketEncoder
from pulsar_ray.session.requests import PublishFailed, encode_request
from pulsar_ray.session.session_table import Session

StoredRow: TypeAlias = tuple[int, int, int, int, int]
"""Names a block that is stored.

Its fields are producer id, entry_seq, entries, and the position of its first entry.
The position is `DUPLICATE` for a block whose messages had been stored before, by another one.
"""


class Refused(NamedTuple):
    """Names a block that is not stored, and why.

    With NO_BLOCK as entry_seq it is news for the producer.
    """

    producer_id: int
    entry_seq: int
    error: PulsarException
    details: dict[str, Any] | None = None
    """Says what the client has to do about it, beside raising the error; see PublishFailed."""


class Outcomes(Protocol):
    """Takes what became of the blocks of one or several producers, on the owner loop."""

    def stored(self, rows: list[StoredRow]) -> None:
        """Take blocks that are stored and confirmed: nothing takes that back."""

    def refused(self, refusal: Refused) -> None:
        """Take a refusal: the block is not stored, and will not be by itself."""


class SessionOutcomes:
    """Sends a session's producers the outcomes of their blocks.

    Packets that are lost with a carrier are asked for again.
    """

    def __init__(self, session: Session, receipts: PacketEncoder) -> None:
        self._session = session
        self._receipts = receipts

    def stored(self, rows: list[StoredRow]) -> None:
        """Send one receipt for all rows."""
        self._session.send(self._receipts.encode((rows,)))

    def refused(self, refusal: Refused) -> None:
        """Send the refusal by its error's name."""
        producer_id, entry_seq, error, details = refusal
        packet = PublishFailed(producer_id, entry_seq, type(error).__name__, error.text, details)
        self._session.send(encode_request(packet))
