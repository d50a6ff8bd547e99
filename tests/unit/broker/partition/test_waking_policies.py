"""Partitions that sleep are told of each policy by which they decide when they wake."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.partition_start import start_partition
from pulsar_ray.broker.partition.topic_offload import TopicOffload
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.config import Settings
from pulsar_ray.format.block import encode_block, parse_block_header
from pulsar_ray.managed_ledger.log.ledger_policies import LedgerPolicies
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.model.policies import POLICIES
from pulsar_ray.testing.manual_clock import ManualClock
from pulsar_ray.transport.ray_cluster import RayCluster

IDENTITY = TopicIdentity(5, "persistent://public/default/t", -1)
SETTINGS = Settings(netty_max_frame_size_bytes=8_000_000)


def worked_out(settings: Settings) -> dict[str, Any]:
    return {**vars(PartitionPolicies(settings)), **vars(LedgerPolicies(settings)), "settings": None}


def deciding(read: set[str]) -> set[str]:
    """Return the policies of settings that were read, or of what is worked out of them."""
    before, found = worked_out(SETTINGS), set()
    for policy in POLICIES.values():
        for name in policy.settings.values():
            value = getattr(SETTINGS, name)
            if isinstance(value, str):
                continue
            after = worked_out(
                SETTINGS.replace(**{name: not value if isinstance(value, bool) else value + 1})
            )
            if name in read or any(each in read for each in before if before[each] != after[each]):
                found.add(policy.name)
    return found


def with_a_message(directory: Path, settings: Settings) -> ManagedLedger:
    ledger = ManagedLedger.open(directory, IDENTITY, settings, ManualClock().now_ms())
    stored: dict[str, Any] = {"incarnation": 1, "entry_seq": 0, "first_sequence_id": 0, "last_sequence_id": 0}
    block = b"".join(map(bytes, encode_block(b"x", **stored, publish_time_ms=7, message_count=1)))
    commit = ledger.begin_append([(parse_block_header(block), (block,))], ManualClock().now_ms())
    commit.run()
    ledger.show(ledger.finish_append(commit).end)
    return ledger


def test_sleeping_partitions_are_told_of_each_policy_by_which_they_fall_asleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.replace(data_dir=str(tmp_path))
    read: set[str] = set()

    def recorded(self: Any, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(self, name)

    async def run() -> None:
        clock = ManualClock()
        host = SessionHost(asyncio.get_running_loop(), tmp_path / "lanes", "127.0.0.1", settings, clock, 1)
        server = await start_partition(
            lambda: with_a_message(tmp_path / "5", settings),
            tmp_path,
            PoliciesInForce(settings),
            clock,
            host,
            print,
            lambda: None,
            RayCluster,
        )
        with monkeypatch.context() as watched:
            # Segments are left to an object store as if there were one.
            watched.setattr(TopicOffload, "_is_off", False)
            for kind in (PartitionPolicies, LedgerPolicies, Settings):
                watched.setattr(kind, "__getattribute__", recorded)
            await server.fall_asleep()
        await host.close()

    asyncio.run(run())
    told = {policy.name for policy in POLICIES.values() if policy.wakes}
    assert deciding(read) | {"remote_durability"} == told
