"""The TopicPartition actor opens its log, and serves by a PartitionServer."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from pulsar_ray.actors.broker_process import begin_broker_process, say_serving
from pulsar_ray.actors.lane_actor import REPORT_DEADLINE_S, LaneActor
from pulsar_ray.broker.partition.partition_server import PartitionServer
from pulsar_ray.broker.partition.partition_start import open_ledger, start_partition, taken_back
from pulsar_ray.broker.partition.partition_stats import describe_found
from pulsar_ray.broker.serving.actor_body import ActorServer, ask_until_answered
from pulsar_ray.broker.serving.failed_starts import may_start_again
from pulsar_ray.broker.serving.shipping_link import ShippingLink, shipping_link
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved, PulsarException, TopicNotFound
from pulsar_ray.journal.store_files import Term
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.managed_ledger.store.store_directory import check_is_store
from pulsar_ray.model.policies import NO_POLICIES, PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import CONTROLLER, partition_name, store_name
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.this_ray import node_id, was_restarted

if TYPE_CHECKING:
    from pulsar_ray.broker.partition.non_persistent.non_persistent_partition import (
        NonPersistentPartitionServer,
    )

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
        super().__init__(partition_name(topic), topic, settings, policies)
        self._directory = Path(directory)
        self._identity = identity
        self._store_id = store_id
        self._must_exist = must_exist
        self._server: PartitionServer | NonPersistentPartitionServer | None = None
        self._body.begin()
        # A call finds it serving: of those that wait, Ray would only keep the order.
        wait((self._body.starting,))
        if (error := self._body.start_error) is not None:
            if not may_start_again(error):
                raise error
            logger.warning("cannot start now, and tries again when it is needed: %s", error)
        if was_restarted():
            self._learn_policies(topic)

    async def _start(self) -> ActorServer:
        host = self._host
        began_s = time.monotonic()
        topic = self._identity.topic
        if TopicName.parse(topic).is_persistent:
            settings = self._in_force.settings
            shipping = shipping_link(settings, self._identity.number, "", self._owner.loop)
            server = self._server = await start_partition(
                partial(self._open_ledger, shipping),
                self._directory,
                self._in_force,
                self._clock,
                host,
                self._fatal,
                self._report_unused,
                RayCluster,
                shipping,
            )
            found = describe_found(server.ledger)
        else:
            from pulsar_ray.broker.partition.non_persistent.non_persistent_partition import (  # noqa: PLC0415 - rare
                NonPersistentPartitionServer,
            )

            await host.start()
            self._server = NonPersistentPartitionServer(
                topic, self._in_force, self._clock, self._owner.loop, host, self._fatal
            )
            found = "nothing is stored"
        self._reports.begin(self._owner.loop, self._in_force.settings, self._server.report)
        say_serving(began_s, found, is_new=not self._must_exist)
        return self._server

    def _open_ledger(self, shipping: ShippingLink | None) -> ManagedLedger:
        settings = self._in_force.settings
        check_is_store(Path(settings.data_dir), self._store_id)
        must_exist = must_be_there(self._identity.topic, self._directory, was_known=self._must_exist)
        ledger = open_ledger(
            self._directory,
            self._identity,
            settings,
            self._clock.now_ms(),
            shipping,
            self._taken_back,
            must_exist=must_exist,
        )
        if not self._must_exist:
            tell_made(self._identity.topic)
        return ledger

    def _taken_back(self) -> Term | None:
        store = store_name(node_id()[:8])
        return taken_back(RayCluster(), store, self._store_id, self._identity, self._directory)

    def _report_unused(self) -> None:
        Thread(target=self._report_unused_now, name="unused", daemon=True).start()

    def _report_unused_now(self) -> None:
        # One that is lost is followed by another.
        with contextlib.suppress(PulsarException):
            topic = self._identity.topic
            RayCluster().call(CONTROLLER, "report_unused", topic, timeout_s=REPORT_DEADLINE_S)

    def _fatal(self, error: BaseException) -> None:
        logger.critical("stops: %s", error)
        os._exit(71)

    async def stats(self) -> dict[str, Any]:
        """Counters and storage of this partition; `refused` with the reason if it cannot serve."""
        if self._body.refusal is not None:
            return {"refused": str(self._body.refusal)}
        if self._body.start_error is not None:
            return {"refused": str(self._body.start_error)}

        async def collect() -> dict[str, Any]:
            assert self._server is not None
            return {
                **await self._server.gather_stats(),
                "sessions": self._host.describe(),
                "pid": os.getpid(),
            }

        result: dict[str, Any] = await self._body.guarded(collect)
        return result

    def _look_after(self) -> dict[str, Any]:
        if self._server is not None:
            return self._server.health()
        return {"problem": f"could not start, and tries again when it is needed: {self._body.start_error}"}

    async def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """A control call of PartitionServer, for admin and Spark."""

        async def run() -> Any:
            await self._body.serving()
            assert self._server is not None
            return await self._server.call(method, arguments)

        result = await self._body.guarded(run)
        if method in ("plan_range", "plan_table"):
            result["node_id"] = node_id()
        return result

    async def trim_now(self) -> bool:
        """See PartitionServer.trim_now: the duty for which a sleeping partition is woken.

        Returns whether its topic is to be deleted, for nobody has used it for long.
        """

        async def run() -> bool:
            await self._body.serving()
            if not isinstance(self._server, PartitionServer):
                return False
            await self._server.trim_now()
            return self._server.is_unused

        return bool(await self._body.guarded(run))

    async def shutdown(self) -> None:
        """Write what is pending and release the directory; the actor is killed next."""
        if self._body.refusal is not None:
            return

        async def close() -> None:
            await self._host.close()
            if self._server is not None:
                await self._server.close()

        with contextlib.suppress(Moved):
            await self._body.guarded(close)


def must_be_there(partition: str, directory: Path, *, was_known: bool) -> bool:
    """Whether a missing directory is a loss, asked in the constructor of the partition's actor.

    `was_known`: the catalog had it when the actor was created. A former life of the actor may have died
    before it made the directory, and behind that: the controller knows, once it answers.
    """
    if was_known or not was_restarted():
        return was_known
    if any(directory.glob(f"{MANIFEST}-*")):
        return True
    try:
        return bool(_asked("was_made", partition))
    except TopicNotFound:
        return True  # the controller ends this actor


def tell_made(partition: str) -> None:
    """Tell the controller, in a thread until it answers, that the directory is there, durably."""
    Thread(target=_tell, args=(partition,), name="made", daemon=True).start()


def _tell(partition: str) -> None:
    try:
        _asked("made", partition)
    except TopicNotFound:
        return  # it was deleted meanwhile


def _asked(method: str, partition: str) -> Any:
    cluster = RayCluster()
    return ask_until_answered(lambda: cluster.controller(method, partition), time.sleep, method)
