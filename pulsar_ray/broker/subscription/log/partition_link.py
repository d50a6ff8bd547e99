"""A dispatcher's connection to its partition, and calls over it."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from pulsar_ray.errors import DiskSpaceLow, NotConnected, PulsarException, SessionLost, WrongNode
from pulsar_ray.session.requests import Call, Request, encode_request
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import AttachReply, Cluster, check_any_there
from pulsar_ray.transport.endpoint import FOLLOWER, Endpoint

ATTACH_DEADLINE_S = 60.0
LOOK_S = 3.0
"""After so long a full disk is no longer waited for."""
CALL_DEADLINE_S = 30.0
RETRY_S = 0.02


class PartitionLink:
    """The dispatcher attaches to its partition as a client does. Made on the owner loop."""

    def __init__(self, cluster: Cluster, topic: str, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._cluster = cluster
        self._topic = topic
        self._address = address
        self._loop = loop
        client_id = f"follower-{secrets.token_hex(8)}"
        self._link = ActorLink(cluster, address, self._find, client_id, "auto", pushes=True, loop=loop)

    def _find(self) -> str:
        check_any_there(self._cluster.resolve(self._topic, create=False, timeout_s=5.0))
        return self._address

    async def attach(self, follower: Endpoint) -> AttachReply:
        """Attach, for a follower that gets the partition's packets from now on.

        Raises DiskSpaceLow soon where the partition cannot start for want of space: whoever waits for the
        dispatcher is to be told, and starts it again.
        """
        self._link.add_endpoint(FOLLOWER, follower)
        end = time.monotonic() + ATTACH_DEADLINE_S
        while True:
            deadline = min(end, time.monotonic() + LOOK_S)
            try:
                return await self._loop.run_in_executor(None, self._link.ensure_attached, deadline)
            except PulsarException as error:
                may_pass = error.retriable and not isinstance(error, (DiskSpaceLow, WrongNode))
                if not may_pass or time.monotonic() >= end:
                    raise

    @property
    def reach(self) -> tuple[str, str]:
        """A file of the partition and its content, as the last attachment answered them."""
        attached = self._link.attached
        return attached.reach if attached else ("", "")

    def send(self, request: Request) -> None:
        """Send a request that has no answer, if the link is attached."""
        self._link.send(encode_request(request))

    async def call(self, method: str, **arguments: Any) -> Any:
        """Make a control call; all may be repeated, and are when the carrier is lost."""
        deadline = self._loop.time() + CALL_DEADLINE_S
        while True:
            try:
                return await self.call_once(method, arguments)
            except (NotConnected, SessionLost):
                if self._link.is_closed or self._loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_S)

    async def call_once(self, method: str, arguments: dict[str, Any]) -> Any:
        """Make a control call that is not repeated."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def reply(value: Any, error: PulsarException | None) -> None:
            self._loop.call_soon_threadsafe(_settle, future, value, error)

        self._link.request_async(lambda request_id: Call(request_id, FOLLOWER, method, arguments), reply)
        return await future

    def close(self) -> None:
        """Leave the partition."""
        self._link.close()


def _settle(future: asyncio.Future[Any], value: Any, error: PulsarException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
