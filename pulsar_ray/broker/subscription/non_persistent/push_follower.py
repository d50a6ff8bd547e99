"""A dispatcher's tie to a non-persistent partition: it is sent the entries themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pulsar_ray.broker.partition.push_followers import WINDOW_BYTES
from pulsar_ray.broker.subscription.log.partition_follower import RETRY_S, PartitionFollower
from pulsar_ray.errors import PulsarException
from pulsar_ray.session.requests import Follow, Pushed, encode_request
from pulsar_ray.transport.cluster import AttachReply, Cluster

REPORT_BYTES = WINDOW_BYTES // 8


class PushFollower(PartitionFollower):
    """As its base, with entries in the place of positions."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        address: str,
        loop: asyncio.AbstractEventLoop,
        subscription: str,
    ) -> None:
        self._subscription = subscription
        self.on_pushed: Callable[[Pushed, memoryview], None] = lambda *_: None
        """Set before `attach`: gets each packet once, on the owner loop."""
        self.on_lost: Callable[[int], None] = lambda _: None
        """Told of messages that the partition had to drop for this dispatcher."""
        self._pushed_epoch = -1
        self._taken_bytes = 0
        self._told_bytes = 0
        self._lost = 0
        self._session_id = -1
        super().__init__(cluster, topic, address, loop)

    def follow(self, number: int, *, armed: bool) -> None:
        """Say whether somebody waits for entries, and how many bytes have arrived."""
        self._armed = armed
        self._tell()

    def _tell(self) -> None:
        self._told_bytes = self._taken_bytes
        packet = Follow(0, self._pushed_epoch, self._armed, self._taken_bytes, self._subscription)
        self.link.send(encode_request(packet))

    async def wait_armed(self) -> None:
        """Return when the partition sends what is published from now on. Raises what calling it raises."""
        while not (await self.look())["armed"]:
            self._tell()
            await asyncio.sleep(RETRY_S)

    async def look(self) -> dict[str, Any]:
        """What the partition says of this follower."""
        following: dict[str, Any] = await self.call("following")
        self._learn(following["epoch"], following["dropped"])
        return following

    async def unfollow(self) -> None:
        """Leave, so that the partition counts no drops for a subscription that is gone."""
        with contextlib.suppress(PulsarException):
            await self._call_once("unfollow", {})
        self.close()

    def reopen(self, attached: AttachReply) -> None:
        """Attached again: what was on its way is lost, what comes now is wanted."""
        self.epoch = attached.epoch
        if attached.session_id != self._session_id:
            # A new session there counts from nothing.
            self._session_id, self._lost = attached.session_id, 0
        self._tell()

    def on_request(self, request: Any, body: memoryview) -> None:
        """A Pushed packet."""
        if isinstance(request, Pushed):
            self._pushed(request, body)

    def _pushed(self, packet: Pushed, body: memoryview) -> None:
        if packet.epoch == self._pushed_epoch and packet.sent_bytes <= self._taken_bytes:
            return
        self._learn(packet.epoch, packet.dropped_messages)
        self._taken_bytes = packet.sent_bytes
        self.on_pushed(packet, body)
        if self._taken_bytes - self._told_bytes >= REPORT_BYTES:
            self._tell()

    def _learn(self, epoch: int, dropped: int) -> None:
        if epoch != self._pushed_epoch:
            # Another life of the partition counts from nothing.
            self._pushed_epoch, self._taken_bytes, self._told_bytes, self._lost = epoch, 0, 0, 0
        # An answer may be looked at after a packet that came behind it.
        if dropped > self._lost:
            self.on_lost(dropped - self._lost)
            self._lost = dropped
