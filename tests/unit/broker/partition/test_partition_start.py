"""A partition's start, and what changes while it is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pulsar_ray.broker.partition.partition_start import start_partition
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.config import Settings
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.testing.manual_clock import ManualClock
from pulsar_ray.transport.ray_cluster import RayCluster

IDENTITY = TopicIdentity(5, "persistent://public/default/t", -1)


def test_policies_that_come_while_the_log_is_opened_hold_for_the_log(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    longer = {"default_retention_time_in_minutes": -1, "default_retention_size_in_mb": -1}

    async def run() -> None:
        loop = asyncio.get_running_loop()
        clock = ManualClock()
        in_force = PoliciesInForce(settings)
        host = SessionHost(loop, tmp_path / "lanes", "127.0.0.1", settings, clock, 1)

        async def take() -> None:
            in_force.take(PolicyUpdate(1, longer))

        def open_ledger() -> ManagedLedger:
            ledger = ManagedLedger.open(tmp_path / "ledgers" / "5", IDENTITY, settings, clock.now_ms())
            asyncio.run_coroutine_threadsafe(take(), loop).result()
            return ledger

        def fatal(error: BaseException) -> None:
            raise error

        server = await start_partition(
            open_ledger, tmp_path, in_force, clock, host, fatal, lambda: None, RayCluster
        )
        await host.close()
        await server.close()
        assert server.ledger.policies.retention.time_ms == -1, "it would be trimmed against the policy"

    asyncio.run(run())
