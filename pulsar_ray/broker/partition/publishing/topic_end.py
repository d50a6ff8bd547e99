"""Ends a partition's topic: what is stored stays readable, and nothing follows."""

from __future__ import annotations

import asyncio

from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.publishing.publish_gate import ClosedBy, PublishGate
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.errors import TopicTerminated
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_name import check_user_may_publish

_POLL_S = 0.005


class TopicEnd:
    """Terminates the topic for good. Belongs to the owner loop."""

    def __init__(
        self, ledger: ManagedLedger, intake: PublishIntake, gate: PublishGate, writer: ManifestWriter
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._gate = gate
        self._writer = writer
        gate.set(ClosedBy.TERMINATED, terminated(ledger))

    async def terminate(self) -> list[int]:
        """Take no more messages, durably; returns the position of the last one.

        All that was admitted before is stored first. May be repeated. Raises NotAllowedError for a system
        topic, BrokerPersistenceError if the disk refuses: then the topic goes on.
        """
        changes = self._ledger.changes
        if changes.terminated is None:
            check_user_may_publish(self._ledger.identity.topic)
            self._gate.set(ClosedBy.TERMINATED, TopicTerminated(_text(self._ledger.identity.topic)))
            try:
                while not self._intake.is_idle:
                    await asyncio.sleep(_POLL_S)
                if changes.terminated is None:
                    await self._writer.confirmed(changes.terminate())
            finally:
                self._gate.set(ClosedBy.TERMINATED, terminated(self._ledger))
        position: Position | None = changes.terminated
        assert position is not None
        return list(position)


def terminated(ledger: ManagedLedger) -> TopicTerminated | None:
    """Return the error for messages behind the end of a topic; None: it goes on."""
    return None if ledger.changes.terminated is None else TopicTerminated(_text(ledger.identity.topic))


def _text(topic: str) -> str:
    return f"{topic} was terminated and takes no more messages: publish to another topic"
