"""The SubscriptionDispatcher actor opens its cursors, and serves by a DispatcherServer."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Any

from pulsar_ray.actors.broker_process import begin_broker_process, say_serving
from pulsar_ray.actors.lane_actor import LaneActor
from pulsar_ray.broker.serving.actor_body import ActorServer
from pulsar_ray.broker.subscription.dispatcher_server import DispatcherServer
from pulsar_ray.broker.subscription.dispatcher_start import new_dispatcher, start_dispatcher
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.offloaded import READING
from pulsar_ray.model.policies import NO_POLICIES, PolicyUpdate
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name
from pulsar_ray.transport.cluster import SubscriptionRequest
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.this_ray import was_restarted

logger = logging.getLogger(__name__)

REMOTE_WAIT_S = 2.0


class SubscriptionDispatcher(LaneActor):
    """Serves one durable subscription on one partition, or all non-durable cursors of it.

    `policies` are those of the topic.
    """

    def __init__(
        self, request: SubscriptionRequest, settings: Settings, policies: PolicyUpdate = NO_POLICIES
    ) -> None:
        what = request.subscription if request.durable else "readers"
        begin_broker_process(
            "dispatcher",
            settings,
            topic=request.topic,
            subscription=request.subscription if request.durable else "",
        )
        # Its one thread for files serves all of its consumers, and comes back to what is not here yet.
        READING.wait_s = REMOTE_WAIT_S
        name = dispatcher_name(request.topic, request.subscription, request.durable)
        super().__init__(name, f"{request.topic} -> {what}", settings, policies)
        self._server: DispatcherServer | None = None
        if was_restarted():
            request = request.after_restart()
        self._request = request
        self._body.begin()
        if was_restarted():
            self._learn_policies(request.topic)

    async def _start(self) -> ActorServer:
        began_s = time.monotonic()
        server = new_dispatcher(
            self._request,
            RayCluster(),
            partition_name(self._request.topic),
            self._in_force,
            self._clock,
            self._host,
            self._fatal,
        )
        await start_dispatcher(server, self._host)
        self._server = server
        self._reports.begin(self._owner.loop, self._in_force.settings, server.report)
        say_serving(began_s, server.subscriptions.describe_found())
        return server

    def _fatal(self, error: BaseException) -> None:
        logger.critical("stops: %s", error)
        os._exit(71)

    async def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """Carry out an administrator's call; waits while the actor starts.

        Raises the refusal of the start.
        """

        async def run() -> Any:
            await self._body.serving()
            assert self._server is not None
            return await self._server.call(method, arguments)

        return await self._body.guarded(run)

    async def serves(self) -> bool:
        """Whether its subscription is there; waits while the actor starts."""

        async def ask() -> bool:
            with contextlib.suppress(PulsarException):
                await self._body.serving()
            return self._server is not None and await self._server.serves()

        return bool(await self._owner.run(ask))

    async def stats(self) -> dict[str, Any]:
        """Backlog, consumers, cursor; `refused` with the reason if it cannot serve."""
        if self._body.refusal is not None:
            return {"refused": str(self._body.refusal)}

        async def collect() -> dict[str, Any]:
            server: dict[str, Any] = {}
            if self._server is not None:
                await self._server.look_around()
                server = self._server.stats()
            return {**server, "sessions": self._host.describe(), "pid": os.getpid()}

        result: dict[str, Any] = await self._body.guarded(collect)
        return result

    def _look_after(self) -> dict[str, Any]:
        if self._server is not None:
            return {"troubles": self._server.subscriptions.troubles()}
        if (error := self._body.start_error) is not None:
            return {"problem": f"could not start, and tries again for the next consumer: {error}"}
        return {"problem": "starts", "is_starting": True}

    async def shutdown(self) -> None:
        """Make the cursor durable; the actor is killed next."""

        async def close() -> None:
            await self._host.close()
            if self._server is not None:
                await self._server.close()

        if self._body.sleeper is None or not self._body.sleeper.has_left:
            await self._owner.run(close)
