"""Turns a partition's deduplication on and off; forgets producers that stay away."""

from __future__ import annotations

from typing import Any

from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.topic_name import TopicName, is_system_topic

_LOOK_MS = 60_000


class DeduplicationSwitch:
    """Lets the log's own durable switch follow the policies; belongs to the owner loop.

    While the policies of today are not known, the log goes on as it did: an actor that Ray has restarted may
    have old ones. System topics are left alone: what the broker itself writes is numbered otherwise.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        producers: ConnectedProducers,
        policies: PartitionPolicies,
        in_force: PoliciesInForce,
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._producers = producers
        self._policies = policies
        self._in_force = in_force
        self._is_system_topic = is_system_topic(TopicName.parse(ledger.identity.topic))
        self._looked_ms: int | None = None

    def begin(self) -> None:
        """Follow the policies before the first block: the change is durable before that block is."""
        self._writer.submit(self._change())

    async def follow(self) -> None:
        """Follow the policies; durable when this returns."""
        await self._writer.durable(self._change())

    def _change(self) -> Any:
        if not self._in_force.are_current:
            return None
        wanted = self._policies.deduplication_enabled and not self._is_system_topic
        return self._ledger.changes.switch_deduplication(on=wanted)

    def tick(self, now_ms: int) -> None:
        """Forget once a minute the producers that have been away too long."""
        if self._looked_ms is not None and 0 <= now_ms - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = now_ms
        self._writer.submit(self._change())
        timeout_ms = self._policies.deduplication_timeout_ms
        self._ledger.sequences.forget_idle(now_ms, timeout_ms, self._producers.by_name)
