"""Starting a partition that is stored: its log, then the server that owns it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from pulsar_ray.broker.partition.partition_parts import PartitionParts
from pulsar_ray.broker.partition.partition_server import PartitionServer
from pulsar_ray.broker.serving.failed_starts import refused_by_disk
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.shipping_link import ShippingLink
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.errors import ServiceUnitNotReady
from pulsar_ray.journal.shipped_disk import ShippedDisk
from pulsar_ray.journal.store_files import Term, listed_files, read_term
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk
from pulsar_ray.ledger.owner_lock import HeldLock, take_lock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.transport.cluster import Cluster

logger = logging.getLogger(__name__)

TOLD_RANGES = 5
TAKE_BACK_S = 60.0


def open_ledger(
    directory: Path,
    identity: TopicIdentity,
    settings: Settings,
    now_ms: int,
    shipping: ShippingLink | None,
    take_back: Callable[[], Term | None],
    *,
    must_exist: bool,
    disk: Disk = SYSTEM_DISK,
    acquire_lock: Callable[[Path], HeldLock] = take_lock,
) -> ManagedLedger:
    """Own a partition's log, in its term if it is shipped; touches the disk.

    `take_back` has the store own a partition again whose move was broken off, and returns its new term.
    Raises what it raises, and as ManagedLedger.open.
    """
    term = read_term(directory)
    if term is not None and term.is_left:
        term = take_back()
    ledger = ManagedLedger.open(
        directory,
        identity,
        settings,
        now_ms,
        must_exist=must_exist,
        acquire_lock=acquire_lock,
        disk=disk if shipping is None else ShippedDisk(directory, shipping),
        first_ledger=0 if term is None else term.first_ledger,
    )
    if shipping is not None:
        shipping.list_files(listed_files(directory))
    return ledger


def taken_back(
    cluster: Cluster, store_address: str, store_id: str, identity: TopicIdentity, directory: Path
) -> Term | None:
    """Have a store own a partition again whose move was broken off.

    Returns its new term. Raises ServiceUnitNotReady if another store owns it by now, which the controller
    learns as well.
    """
    take_back = "journal", "take_back", identity.number
    owner = cluster.call(store_address, "call_part", *take_back, timeout_s=TAKE_BACK_S)
    if owner != store_id:
        cluster.controller("call_part", "lost_stores", "follow_owner", identity.topic, timeout_s=TAKE_BACK_S)
        raise ServiceUnitNotReady(f"store {owner} has {identity.topic} by now: resolve it again")
    return read_term(directory)


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
            parts = PartitionParts(
                ledger, in_force, clock, loop, host, on_fatal, on_unused, new_cluster, shipping
            )
            return PartitionServer(parts, host, on_fatal)
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
