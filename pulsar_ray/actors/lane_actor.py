"""The common base of TopicPartition and SubscriptionDispatcher.

an owner loop, a session host, and an error to answer with.

An actor whose start failed for a reason that a restart would not mend comes up all the same and answers every
call with the typed error; dying would only make Ray restart it for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import ray.exceptions as ray_errors

from pulsar_ray.actors.client_endings import ended_by_ray
from pulsar_ray.actors.watching.own_reports import OwnReports
from pulsar_ray.broker.serving.failed_starts import may_start_again
from pulsar_ray.broker.serving.owner_loop import OwnerLoop
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.sleeper import Idle, Retired, Sleeper, SleepingServer
from pulsar_ray.clock import RunningClock, SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved, PulsarException, TopicNotFound
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
)

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0
REPORT_DEADLINE_S = 5.0
RETIRED_S = 10.0
"""A retired actor that the controller does not kill in this time ends itself."""
UNUSED_MS = 1 << 40
"""For how long an actor has been idle that cannot serve."""
DATA = "data"
"""The concurrency group of the calls that carry a session (see `options`)."""
WARM_UP_S = 30.0


class LaneActor:
    """Base of the actors that clients attach to.

    Ray methods run on the owner loop, or hand over to it and await.
    """

    def __init__(self, name: str, label: str) -> None:
        allow_blocking_calls()
        self._name = name
        self._label = label
        self._clock = RunningClock(SystemClock())
        # On the loop that its calls run on an `exchange` changes threads no more.
        self._owner = OwnerLoop("owner", running=loop_of_group(DATA))
        warm_up_later(self._owner.loop)
        self._refusal: PulsarException | None = None
        self._host: SessionHost | None = None
        self._sleeper: Sleeper | None = None
        self._reports = OwnReports()
        self._starting: Future[None]

    def _begin_start(self) -> None:
        """Start on the owner loop.

        Calls wait for it, and try again if it failed for a reason that may pass.
        """
        self._starting = self._owner.submit(self._start_or_refuse)

    async def _start_or_refuse(self) -> None:
        if self._refusal is not None:
            return
        try:
            await self._start()
        except PulsarException as error:
            if may_start_again(error):
                raise
            logger.error("cannot serve: %s", error)
            self._refusal = error

    async def _start(self) -> None:
        """Let the server of this actor serve."""
        raise NotImplementedError

    @property
    def _start_error(self) -> BaseException | None:
        """The error of a start that failed and is tried again."""
        return self._starting.exception() if self._starting.done() else None

    def __repr__(self) -> str:
        return self._label

    def _hold_cluster(self, data_dir: str) -> None:
        """Keep other clusters out of the data directory for as long as this process lives."""
        self._cluster_lock = hold_cluster_lock(Path(data_dir))

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
        Thread(target=self._ask_for_policies, args=(topic,), name="policies", daemon=True).start()

    def _ask_for_policies(self, topic: str) -> None:
        cluster = RayCluster()
        while True:
            try:
                update = cluster.controller("policies_for", topic)
                break
            except TopicNotFound:
                return  # the controller ends this actor
            except PulsarException as error:
                logger.warning("does not know its policies yet: %s", error)
                time.sleep(ASK_AGAIN_S)
        try:
            self._owner.submit(lambda: self.apply_policies(update)).result()
        except PulsarException as error:
            logger.error("cannot heed its policies: %s", error)

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """Let policies of the topic hold from now on.

        A late or repeated update changes nothing.
        """
        raise NotImplementedError

    # --- sleeping ---------------------------------------------------------------------------------

    def _watch_idleness(self, server: SleepingServer, settings: Settings) -> None:
        """Report to the controller from now on when nobody uses the server."""
        assert self._host is not None
        seconds = settings.idle_actor_passivation_seconds
        self._sleeper = Sleeper(server, self._host, self._clock, self._owner.loop, seconds, self._report)

    def _report(self, idle: Idle) -> None:
        Thread(target=self._report_now, args=(idle,), name="idle", daemon=True).start()

    def _report_now(self, idle: Idle) -> None:
        # One that is lost is followed by another.
        with contextlib.suppress(PulsarException):
            RayCluster().call(CONTROLLER, "report_idle", self._name, idle, timeout_s=REPORT_DEADLINE_S)

    async def idle(self) -> Idle | None:
        """Answer for how long nobody has used this actor; None while it starts."""

        async def look() -> Idle | None:
            return None if self._sleeper is None else self._sleeper.idle()

        if self._refusal is not None:
            return Idle(UNUSED_MS, 0, can_park=True)
        answer: Idle | None = await self._owner.run(look)
        return answer

    async def retire(self, least_idle_ms: int, with_clients: bool) -> Retired | None:
        """See Sleeper.retire. Once this has answered, the process may be killed and nothing is lost.

        Should nobody kill it, it ends by itself: Ray starts it again, and it is idle again.
        """
        if self._refusal is not None:
            return Retired()

        async def run() -> Retired | None:
            sleeper = self._sleeper
            if sleeper is None:
                return None
            retired = await sleeper.retire(least_idle_ms, with_clients=with_clients)
            if retired is not None:
                self._owner.loop.call_later(RETIRED_S, os._exit, 0)
            return retired

        try:
            answer: Retired | None = await self._owner.run(run)
        except Exception as error:  # noqa: BLE001 - whatever it is
            # Half of it is closed: as after any crash, the next process sorts it out.
            logger.critical("could not go to sleep: %s", error)
            os._exit(71)
        return answer

    async def health(self) -> dict[str, Any]:
        """Say what is wrong, as fields of ActorFacts; none if nothing is."""
        if self._refusal is not None:
            return {"problem": f"cannot be served: {self._refusal}"}

        async def look() -> dict[str, Any]:
            return self._look_after()

        found: dict[str, Any] = await self._owner.run(look)
        return found

    def _look_after(self) -> dict[str, Any]:
        """The part of `health` that looks at the server, on its loop."""
        raise NotImplementedError

    async def _guarded(self, work: Callable[[], Awaitable[Any]]) -> Any:
        if self._refusal is not None:
            raise self._refusal.again()

        async def run() -> Any:
            # Looked at on the loop on which it leaves, in the turn in which the work begins.
            if self._sleeper is not None and self._sleeper.has_left:
                raise Moved(f"{self._label} has gone to sleep: resolve its topic again")
            return await work()

        return await self._owner.run(run)

    async def attach(
        self, client_id: str, protocol_version: int, want_tcp: bool, attempt: int, place: str = ""
    ) -> dict[str, Any]:
        """See SessionHost.attach."""

        async def run() -> dict[str, Any]:
            host = await self._serving()
            return await host.attach(client_id, protocol_version, want_tcp, attempt, place)

        reply: dict[str, Any] = await self._guarded(run)
        return reply

    async def _serving(self) -> SessionHost:
        """The host, once this actor serves. Raises what its start was refused with."""
        if self._start_error is not None:
            # Nothing that is so for good is raised there: a disk that was full may have room by now, a
            # partition that did not answer may be back.
            self._begin_start()
        await asyncio.wrap_future(self._starting)
        if self._refusal is not None:
            raise self._refusal.again()
        assert self._host is not None
        return self._host

    async def exchange(self, packed: bytes) -> bytes:
        """See SessionHost.exchange; both ways as `exchange_bytes` packs it."""
        host = self._host
        assert host is not None
        head = unpack_head(packed)
        return pack_answer(*await self._guarded(lambda: host.exchange(*head, lambda: unpack_packets(packed))))

    async def stay(self, session_id: int, attachment: int, token: bytes) -> None:
        """Answer when the session ends; the client owns this call, for `watch`."""
        host = self._host
        assert host is not None
        await self._guarded(lambda: host.stay(session_id, attachment, token))

    async def watch(self, session_id: int, life: list[Any]) -> None:
        """End the session when the client's process dies.

        That is when the owner of `life`, its `stay` call, dies.
        """
        host = self._host
        assert host is not None
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
