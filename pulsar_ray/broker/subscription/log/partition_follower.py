"""A dispatcher's tie to its partition: it attaches as a client, follows the log, asks for the rest."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.errors import NotConnected, PulsarException, SessionLost
from pulsar_ray.session.requests import Advanced, Call, Follow, MoveHold, encode_request
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import AttachReply, Cluster, check_any_there
from pulsar_ray.transport.endpoint import FOLLOWER

ATTACH_DEADLINE_S = 60.0
CALL_DEADLINE_S = 30.0
RETRY_S = 0.02


class PartitionFollower:
    """An endpoint on a link; made on the owner loop."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        address: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._address = address
        self._loop = loop
        self.on_advanced: Callable[[Advanced], None] = lambda _: None
        """Set before `attach`: called on the owner loop for each packet."""
        self._number = -1
        self._armed = False
        self.epoch = -1
        self.link = ActorLink(
            cluster, address, self._find, f"follower-{secrets.token_hex(8)}", "auto", pushes=True, loop=loop
        )
        self.link.add_endpoint(FOLLOWER, self)

    def _find(self) -> str:
        check_any_there(self._cluster.resolve(self._topic, create=False, timeout_s=5.0))
        return self._address

    async def attach(self) -> AttachReply:
        """Wait until attached."""
        deadline = time.monotonic() + ATTACH_DEADLINE_S
        return await asyncio.get_running_loop().run_in_executor(None, self.link.ensure_attached, deadline)

    def follow(self, number: int, *, armed: bool) -> None:
        """Say whether somebody waits for new entries; answered with where the log is."""
        self._number = number
        self._armed = armed
        self.link.send(encode_request(Follow(number, self.epoch, armed)))

    def move_hold(self, ledger_id: int, entry_id: int) -> None:
        """Report a durable mark-delete position."""
        self.link.send(encode_request(MoveHold(self._number, ledger_id, entry_id)))

    async def call(self, method: str, **arguments: Any) -> Any:
        """A control call of the partition; all may be repeated, and are when the carrier is lost."""
        deadline = self._loop.time() + CALL_DEADLINE_S
        while True:
            try:
                return await self._call_once(method, arguments)
            except (NotConnected, SessionLost):
                if self.link.is_closed or self._loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _call_once(self, method: str, arguments: dict[str, Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def reply(value: Any, error: PulsarException | None) -> None:
            self._loop.call_soon_threadsafe(_settle, future, value, error)

        self.link.request_async(lambda request_id: Call(request_id, FOLLOWER, method, arguments), reply)
        return await future

    # --- the endpoint, called on the owner loop, but for losses and attachments --------------------------

    awaits_packets = True
    """Of the actor's own accord."""

    def reopen(self, attached: AttachReply) -> None:
        """Attached again: ask where the log is."""
        self.epoch = attached.epoch
        if self._number >= 0:
            self.link.send(encode_request(Follow(self._number, self.epoch, self._armed)))

    def on_refused(self, error: PulsarException) -> None:
        """The topic was deleted; whoever deleted it ends this actor too."""

    def on_detached(self) -> None:
        """What was missed is asked for after the next attach."""

    def on_request(self, request: Any, body: memoryview) -> None:
        """An Advanced packet."""
        if isinstance(request, Advanced):
            self.on_advanced(request)

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """A follower publishes nothing."""

    def close(self) -> None:
        """Leave."""
        self.link.close()


def _settle(future: asyncio.Future[Any], value: Any, error: PulsarException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
