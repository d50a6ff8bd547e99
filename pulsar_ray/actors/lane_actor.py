"""The common base of TopicPartition and SubscriptionDispatcher: an ActorBody as Ray knows it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
import time
from pathlib import Path
from threading import Thread
from typing import Any

import ray.exceptions as ray_errors

from pulsar_ray.actors.client_endings import ended_by_ray
from pulsar_ray.actors.watching.own_reports import OwnReports
from pulsar_ray.broker.serving.actor_body import ActorBody, ActorServer, learn_policies
from pulsar_ray.broker.serving.owner_loop import OwnerLoop
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.sleeper import Idle, Retired
from pulsar_ray.clock import RunningClock, SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.address import user_directory
from pulsar_ray.managed_ledger.store.store_directory import hold_cluster_lock
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.numpy_on_demand import np
from pulsar_ray.session.tunnel import pack_answer, unpack_head, unpack_packets
from pulsar_ray.transport.actor_names import CONTROLLER
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.this_ray import (
    allow_blocking_calls,
    loop_of_group,
    node_address,
    was_restarted,
)

logger = logging.getLogger(__name__)

REPORT_DEADLINE_S = 5.0
DATA = "data"
"""The concurrency group of the calls that carry a session (see `options`)."""
WARM_UP_S = 30.0


class LaneActor:
    """Base of the actors that clients attach to.

    Ray methods run on the owner loop, or hand over to it and await.
    """

    def __init__(self, name: str, label: str, settings: Settings, policies: PolicyUpdate) -> None:
        allow_blocking_calls()
        self._name = name
        self._label = label
        self._clock = RunningClock(SystemClock())
        # On the loop that its calls run on an `exchange` changes threads no more.
        self._owner = OwnerLoop("owner", running=loop_of_group(DATA))
        warm_up_later(self._owner.loop)
        self._in_force = PoliciesInForce(settings, policies, is_stale=was_restarted())
        refusal: PulsarException | None = None
        try:
            # Other clusters are kept out of the data directory for as long as this process lives.
            self._cluster_lock = hold_cluster_lock(Path(settings.data_dir))
        except PulsarException as error:
            refusal = error
        self._host = self._new_host(settings)
        self._reports = OwnReports()
        self._body = ActorBody(
            label,
            self._owner,
            self._host,
            self._in_force,
            self._clock,
            start=self._start,
            report_idle=self._report,
            end_process=os._exit,
            refusal=refusal,
        )

    async def _start(self) -> ActorServer:
        """Let the server of this actor serve."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._label

    def _new_host(self, settings: Settings) -> SessionHost:
        node = node_address()
        # Sessions of a former life of this actor must not be mistaken for new ones: their tokens differ,
        # their ids too.
        first_id = int.from_bytes(os.urandom(5), "little") << 20 | 1
        host = SessionHost(self._owner.loop, user_directory(), node, settings, self._clock, first_id)
        host.ended_in_order = ended_by_ray
        return host

    def _learn_policies(self, topic: str) -> None:
        """Ask the controller, in a thread until it answers, for the policies of a topic.

        Those that a restarted actor was created with may have changed since.
        """
        asked = (
            lambda: RayCluster().controller("policies_for", topic),
            lambda update: self._owner.submit(lambda: self.apply_policies(update)).result(),
            time.sleep,
        )
        Thread(target=learn_policies, args=asked, name="policies", daemon=True).start()

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """See ActorBody.apply_policies."""
        await self._body.apply_policies(update)

    # --- sleeping ---------------------------------------------------------------------------------

    def _report(self, idle: Idle) -> None:
        Thread(target=self._report_now, args=(idle,), name="idle", daemon=True).start()

    def _report_now(self, idle: Idle) -> None:
        # One that is lost is followed by another.
        with contextlib.suppress(PulsarException):
            RayCluster().call(CONTROLLER, "report_idle", self._name, idle, timeout_s=REPORT_DEADLINE_S)

    async def idle(self) -> Idle | None:
        """See ActorBody.idle."""
        return await self._body.idle()

    async def retire(self, least_idle_ms: int, with_clients: bool) -> Retired | None:
        """See ActorBody.retire."""
        return await self._body.retire(least_idle_ms, with_clients)

    async def health(self) -> dict[str, Any]:
        """Say what is wrong, as fields of ActorFacts; none if nothing is."""
        if self._body.refusal is not None:
            return {"problem": f"cannot be served: {self._body.refusal}"}

        async def look() -> dict[str, Any]:
            return self._look_after()

        found: dict[str, Any] = await self._owner.run(look)
        return found

    def _look_after(self) -> dict[str, Any]:
        """The part of `health` that looks at the server, on its loop."""
        raise NotImplementedError

    async def attach(
        self, client_id: str, protocol_version: int, want_tcp: bool, attempt: int, place: str = ""
    ) -> dict[str, Any]:
        """See SessionHost.attach."""
        return await self._body.attach(client_id, protocol_version, want_tcp, attempt, place)

    async def exchange(self, packed: bytes) -> bytes:
        """See SessionHost.exchange; both ways as `exchange_bytes` packs it."""
        host = self._host
        head = unpack_head(packed)
        return pack_answer(
            *await self._body.guarded(lambda: host.exchange(*head, lambda: unpack_packets(packed)))
        )

    async def stay(self, session_id: int, attachment: int, token: bytes) -> None:
        """Answer when the session ends; the client owns this call, for `watch`."""
        host = self._host
        await self._body.guarded(lambda: host.stay(session_id, attachment, token))

    async def watch(self, session_id: int, life: list[Any]) -> None:
        """End the session when the client's process dies.

        That is when the owner of `life`, its `stay` call, dies.
        """
        host = self._host
        try:
            await life[0]
        except ray_errors.OwnerDiedError:
            await self._owner.run(lambda: host.client_died(session_id))
        except ray_errors.RayError:
            return

    async def probe(self) -> int:
        """Return the process id, off the loop: a slow disk is no reason to kill."""
        return os.getpid()


def warm_up_later(loop: asyncio.AbstractEventLoop) -> None:
    """Import later what an actor may need, but not for its first message.

    A thread beside the loop does that, so that no message waits for it. Thread-safe.
    """
    loop.call_soon_threadsafe(loop.call_later, WARM_UP_S, _start)


def _start() -> None:
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()


def _warm_up() -> None:
    _ = np.ndarray
    gc.freeze()
