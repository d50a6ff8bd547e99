"""The TopicPartition actor: a thin shell around PartitionServer."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any

from pulsar_ray.actors.broker_process import begin_broker_process
from pulsar_ray.actors.lane_actor import LaneActor
from pulsar_ray.broker.partition.non_persistent.non_persistent_partition import NonPersistentPartitionServer
from pulsar_ray.broker.partition.partition_server import PartitionServer
from pulsar_ray.broker.partition.partition_stats import describe_found
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved, PulsarException
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.managed_ledger.store.store_directory import check_is_store
from pulsar_ray.model.policies import NO_POLICIES, PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import partition_name
from pulsar_ray.transport.this_ray import node_id, was_restarted

logger = logging.getLogger(__name__)


class TopicPartition(LaneActor):
    """Owns one partition of a topic.

    `store_id` is the store that `directory` is in. `must_exist`: its ledger was there before, so a missing
    directory is a loss. A non-persistent topic has none. `policies` are those of its topic.
    """

    def __init__(
        self,
        directory: str,
        identity: TopicIdentity,
        store_id: str,
        settings: Settings,
        must_exist: bool,
        policies: PolicyUpdate = NO_POLICIES,
    ) -> None:
        topic = identity.topic
        begin_broker_process("partition", settings, topic=topic)
        super().__init__(partition_name(topic), topic)
        self._in_force = PoliciesInForce(settings, policies, is_stale=was_restarted())
        self._server: PartitionServer | NonPersistentPartitionServer | None = None
        began_s = time.monotonic()
        try:
            self._hold_cluster(settings.data_dir)
            ledger = None
            if TopicName.parse(topic).is_persistent:
                check_is_store(Path(settings.data_dir), store_id)
                ledger = ManagedLedger.open(
                    Path(directory),
                    identity,
                    self._in_force.settings,
                    self._clock.now_ms(),
                    # Restarted, it made the directory in its former life.
                    must_exist=must_exist or was_restarted(),
                )
        except PulsarException as error:
            logger.error("cannot serve: %s", error)
            self._refusal = error
            return
        self._host = self._new_host(settings)
        self._owner.submit(lambda: self._start(topic, ledger)).result()
        found = "nothing is stored" if ledger is None else describe_found(ledger)
        self._say_serving(began_s, found, is_new=not must_exist)
        if was_restarted():
            self._learn_policies(topic)

    async def _start(self, topic: str, ledger: ManagedLedger | None) -> None:
        host = self._host
        assert host is not None
        await host.start()
        rest = (self._in_force, self._clock, self._owner.loop, host, self._fatal)
        if ledger is None:
            self._server = NonPersistentPartitionServer(topic, *rest)
        else:
            self._server = PartitionServer(ledger, *rest)
        self._watch_idleness(self._server, self._in_force.settings)
        self._reports.begin(self._owner.loop, self._in_force.settings, self._server.report)

    def _fatal(self, error: BaseException) -> None:
        logger.critical("stops: %s", error)
        os._exit(71)

    async def _serving(self) -> SessionHost:
        assert self._host is not None
        return self._host

    async def stats(self) -> dict[str, Any]:
        """Counters and storage of this partition; `refused` with the reason if it cannot serve."""
        if self._refusal is not None:
            return {"refused": str(self._refusal)}

        async def collect() -> dict[str, Any]:
            assert self._server is not None
            assert self._host is not None
            return {
                **await self._server.gather_stats(),
                "sessions": self._host.describe(),
                "pid": os.getpid(),
            }

        result: dict[str, Any] = await self._guarded(collect)
        return result

    def _look_after(self) -> dict[str, Any]:
        return {} if self._server is None else self._server.health()

    async def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """A control call of PartitionServer, for admin and Spark."""

        async def run() -> Any:
            assert self._server is not None
            return await self._server.call(method, arguments)

        result = await self._guarded(run)
        if method == "plan_range":
            result["node_id"] = node_id()
        return result

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """See PartitionServer.apply_policies."""

        async def run() -> None:
            assert self._server is not None
            await self._server.apply_policies(update)

        await self._guarded(run)

    async def trim_now(self) -> None:
        """See PartitionServer.trim_now: the duty for which a sleeping partition is woken."""

        async def run() -> None:
            if isinstance(self._server, PartitionServer):
                await self._server.trim_now()

        await self._guarded(run)

    async def shutdown(self) -> None:
        """Write what is pending and release the directory; the actor is killed next."""
        if self._refusal is not None:
            return

        async def close() -> None:
            assert self._host is not None
            assert self._server is not None
            await self._host.close()
            await self._server.close()

        with contextlib.suppress(Moved):
            await self._guarded(close)
