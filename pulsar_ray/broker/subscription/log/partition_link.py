"""Connects a dispatcher to its partition, calls it, and follows its log."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.errors import DiskSpaceLow, NotConnected, PulsarException, SessionLost, WrongNode
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import Advanced, Call, Expired, Follow, MoveHold, Request, encode_request
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


class PartitionFollower:
    """The endpoint of a dispatcher at its partition.

    `on_advanced` gets each packet on the owner loop, `on_expired` how far the broker has acknowledged.
    """

    awaits_packets = True
    """The partition sends packets of its own accord."""
    needs_actor = True
    awaited_consumer = None
    """A dispatcher that runs follows its partition."""

    def __init__(
        self,
        partition: PartitionLink,
        on_advanced: Callable[[Advanced], None],
        on_expired: Callable[[Position], None] = lambda _: None,
    ) -> None:
        self._partition = partition
        self._on_advanced = on_advanced
        self._on_expired = on_expired
        self._number = -1
        self._armed = False
        self._epoch = -1
        self._hold: Position | None = None

    async def attach(self) -> AttachReply:
        """Wait until attached."""
        return await self._partition.attach(self)

    def follow(self, number: int, *, armed: bool) -> None:
        """Send whether somebody waits for new entries; the partition answers with where the log is."""
        self._number = number
        self._armed = armed
        self._send_follow()

    def _send_follow(self) -> None:
        self._partition.send(Follow(self._number, self._epoch, self._armed))

    def move_hold(self, mark_delete: Position) -> None:
        """Report a durable mark-delete position, also over the next carrier: this one may lose it."""
        self._hold = mark_delete
        self._partition.send(MoveHold(self._number, *mark_delete))

    def forget_hold(self) -> None:
        """Report the last position no more: the partition is about to go back behind it."""
        self._hold = None

    # --- the endpoint: called on the owner loop, but for losses and attachments -------------------

    def reopen(self, attached: AttachReply) -> None:
        """Ask where the log is: attached again."""
        self._epoch = attached.epoch
        if self._number >= 0:
            self._send_follow()
        if self._hold is not None:
            self.move_hold(self._hold)

    def on_refused(self, error: PulsarException) -> None:
        """Do nothing: the topic was deleted, and the controller ends this actor too."""

    def send_last(self) -> None:
        """Do nothing: a follower holds nothing back."""

    def on_detached(self) -> None:
        """Do nothing: missed packets are made up for after the next attach."""

    def on_request(self, request: Any, body: memoryview) -> None:
        """Take in a packet of the partition."""
        if isinstance(request, Advanced):
            self._on_advanced(request)
        elif isinstance(request, Expired):
            self._on_expired(Position(*request))

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Do nothing: a follower publishes nothing."""


class Arming:
    """Sends changes through `follow`, and repeats while armed what may have been lost."""

    def __init__(self, follow: Callable[[bool], None]) -> None:
        self._follow = follow
        self.is_armed = False

    def update(self, is_wanted: bool) -> None:
        """Send whether new entries are wanted, if that has changed."""
        if is_wanted != self.is_armed:
            self.is_armed = is_wanted
            self._follow(is_wanted)

    def repeat(self) -> None:
        """Send again that new entries are wanted, if they are."""
        if self.is_armed:
            self._follow(True)
