"""Starting a partition that is stored: its log, then the server that owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from pulsar_ray.broker.partition.partition_server import PartitionServer
from pulsar_ray.broker.serving.failed_starts import refused_by_disk
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger


async def start_partition(
    open_ledger: Callable[[], ManagedLedger],
    directory: Path,
    in_force: PoliciesInForce,
    clock: Clock,
    host: SessionHost,
    on_fatal: Callable[[BaseException], None],
    on_unused: Callable[[], None],
) -> PartitionServer:
    """Open a partition's log, and let it serve; runs on its owner loop.

    If this raises, it has let go of everything, and may be called again: DiskSpaceLow or
    BrokerPersistenceError if the disk refused, and what ManagedLedger.open refuses with.
    """
    loop = asyncio.get_running_loop()
    await host.start()
    try:
        ledger = await loop.run_in_executor(None, open_ledger)
        try:
            return PartitionServer(ledger, in_force, clock, loop, host, on_fatal, on_unused)
        except BaseException:
            ledger.close()
            raise
    except OSError as error:
        raise refused_by_disk(directory, error) from error
