"""Messages that the broker itself publishes: the records of change logs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.clock import Clock
from pulsar_ray.errors import PulsarException, error_from
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import OpenProducer, PublishFailed, Receipt, decode_request
from pulsar_ray.session.session_table import Session

PRODUCER_NAME = "pulsar-ray-broker"
_PRODUCER_ID = 0


class OwnMessages:
    """Publishes as a producer that is open until its messages are answered.

    The carrier of its session is this object. Belongs to the owner loop.
    """

    kind = "own"
    unsent_bytes = 0
    is_peer_stopped = False

    def __init__(self, producers: ConnectedProducers, intake: PublishIntake, clock: Clock) -> None:
        self._producers = producers
        self._intake = intake
        self._clock = clock
        self._session = Session(0, PRODUCER_NAME, clock.now_ms())
        self._session.carrier = self
        self._incarnation = secrets.randbits(64)
        self._unanswered: dict[int, asyncio.Future[Position]] = {}

    async def append(self, key: str, value: str) -> Position:
        """Append one message; durable when this returns. Raises the partition's refusal."""
        if not self._unanswered:
            self._producers.open(
                self._session,
                OpenProducer(0, _PRODUCER_ID, PRODUCER_NAME, self._incarnation, 0, 0, 0, user_named=False),
            )
        seq = self._session.endpoints[_PRODUCER_ID].next_seq
        block = encode_block(
            value.encode(),
            incarnation=self._incarnation,
            entry_seq=seq,
            first_sequence_id=seq,
            last_sequence_id=seq,
            publish_time_ms=self._clock.now_ms(),
            metadata=BlockMetadata(producer_name=PRODUCER_NAME, key=key),
        )
        answered: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._unanswered[seq] = answered
        self._intake.publish(self._session, _PRODUCER_ID, memoryview(b"".join(block)), is_awaited=True)
        return await answered

    # --- as the carrier of its session --------------------------------------------------------------

    def send(self, buffers: Sequence[Any]) -> None:
        """Take a packet of the partition for its producer."""
        match decode_request(decode_packet(b"".join(buffers))):
            case Receipt(blocks):
                for _, seq, _, ledger_id, entry_id in blocks:
                    self._answer(seq, Position(ledger_id, entry_id))
            case PublishFailed(_, seq, error, text):
                self._answer(seq, error_from(error, text))

    def _answer(self, seq: int, outcome: Position | PulsarException) -> None:
        answered = self._unanswered.pop(seq, None)
        if not self._unanswered:
            self._producers.close(self._session.endpoints[_PRODUCER_ID])
        if answered is None or answered.done():
            return
        if isinstance(outcome, PulsarException):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)

    def close(self, error: PulsarException | None = None) -> None:
        """Nothing holds the connection but this process."""

    async def drained(self) -> None:
        """Nothing is ever unsent."""

    def retain(self, count: int) -> None:
        """One message at a time is not worth counting."""

    def release(self, count: int) -> None:
        """See `retain`."""

    def hold_reading(self, *, held: bool) -> None:
        """Go on: a record of the broker's own waits for no rate."""
