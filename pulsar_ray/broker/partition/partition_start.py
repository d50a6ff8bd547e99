"""Starting a partition that is stored: its log, then the server that owns it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from pulsar_ray.broker.partition.partition_server import PartitionServer
from pulsar_ray.broker.serving.failed_starts import refused_by_disk
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.shipping_link import ShippingLink
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.transport.cluster import Cluster

logger = logging.getLogger(__name__)

TOLD_RANGES = 5


async def start_partition(
    open_ledger: Callable[[], ManagedLedger],
    directory: Path,
    in_force: PoliciesInForce,
    clock: Clock,
    host: SessionHost,
    on_fatal: Callable[[BaseException], None],
    on_unused: Callable[[], None],
    new_cluster: Callable[[], Cluster],
    shipping: ShippingLink | None = None,
) -> PartitionServer:
    """Open a partition's log, and let it serve; runs on its owner loop.

    If this raises, it has let go of everything, and may be called again: DiskSpaceLow or
    BrokerPersistenceError if the disk refused, and what ManagedLedger.open refuses with.
    """
    loop = asyncio.get_running_loop()
    await host.start()
    try:
        ledger = await loop.run_in_executor(None, open_ledger)
        _tell_damage(ledger)
        try:
            return PartitionServer(
                ledger, in_force, clock, loop, host, on_fatal, on_unused, new_cluster, shipping
            )
        except BaseException:
            ledger.close()
            raise
    except OSError as error:
        raise refused_by_disk(directory, error) from error


def _tell_damage(ledger: ManagedLedger) -> None:
    """Log which confirmed entries the start found lost."""
    topic, found = ledger.identity.topic, ledger.corruptions
    for lost in found[:TOLD_RANGES]:
        event(
            logger,
            "some of the confirmed entries %d to %d of ledger %d cannot be read (%s at %d): %s",
            *(lost.first_entry_id, lost.last_entry_id, lost.ledger_id, lost.path, lost.offset, lost.reason),
            level=logging.ERROR,
            topic=topic,
        )
    if len(found) > TOLD_RANGES:
        text = "confirmed entries of %d more ranges cannot be read: `pulsar-ray verify` names them"
        event(logger, text, len(found) - TOLD_RANGES, level=logging.ERROR, topic=topic)
