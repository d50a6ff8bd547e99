"""Messages that the broker itself publishes: the records of change logs."""

from __future__ import annotations

import asyncio
import secrets

from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.producer_endpoint import Refused, StoredRow
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.clock import Clock
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import OpenProducer
from pulsar_ray.session.session_table import Session

PRODUCER_NAME = "pulsar-ray-broker"
_PRODUCER_ID = 0


class OwnMessages:
    """Publishes as a producer that is open until its messages are answered.

    No client holds its session, and nothing carries it. Belongs to the owner loop.
    """

    def __init__(self, producers: ConnectedProducers, intake: PublishIntake, clock: Clock) -> None:
        self._producers = producers
        self._intake = intake
        self._clock = clock
        self._session = Session(0, PRODUCER_NAME, clock.now_ms())
        self._incarnation = secrets.randbits(64)
        self._unanswered: dict[int, asyncio.Future[Position]] = {}

    async def append(self, key: str, value: str) -> Position:
        """Append one message; confirmed when this returns. Raises the partition's refusal."""
        if not self._unanswered:
            request = OpenProducer(
                0, _PRODUCER_ID, PRODUCER_NAME, self._incarnation, 0, 0, 0, user_named=False
            )
            self._producers.open(self._session, request, outcomes=self)
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

    # --- as the outcomes of its producer --------------------------------------------------------------

    def stored(self, rows: list[StoredRow]) -> None:
        """Answer the calls whose messages are confirmed."""
        for _, entry_seq, _, ledger_id, entry_id in rows:
            answered = self._answered(entry_seq)
            if answered is not None:
                answered.set_result(Position(ledger_id, entry_id))

    def refused(self, refusal: Refused) -> None:
        """Raise the refusal in the call that appends this message.

        News of the producer are passed over.
        """
        answered = self._answered(refusal.entry_seq)
        if answered is not None:
            answered.set_exception(refusal.error)

    def _answered(self, entry_seq: int) -> asyncio.Future[Position] | None:
        """Return the call that waits for an outcome; behind the last one the producer leaves."""
        answered = self._unanswered.pop(entry_seq, None)
        if not self._unanswered and _PRODUCER_ID in self._session.endpoints:
            self._producers.close(self._session.endpoints[_PRODUCER_ID])
        return None if answered is None or answered.done() else answered
