"""Following a non-persistent partition, which sends the entries themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.broker.partition.non_persistent.push_followers import WINDOW_BYTES
from pulsar_ray.broker.subscription.log.partition_link import RETRY_S, PartitionLink
from pulsar_ray.errors import PulsarException
from pulsar_ray.session.requests import Follow, Pushed
from pulsar_ray.transport.cluster import AttachReply

REPORT_BYTES = WINDOW_BYTES // 8


class PushFollower:
    """The endpoint of a dispatcher at a non-persistent partition.

    On the owner loop `on_pushed` gets each packet once, and `on_lost` the number of messages that the
    partition had to drop for this dispatcher.
    """

    awaits_packets = True
    """The partition sends packets of its own accord."""
    needs_actor = True
    awaited_consumer = None
    """A dispatcher that runs follows its partition."""

    def __init__(
        self,
        partition: PartitionLink,
        subscription: str,
        *,
        on_pushed: Callable[[Pushed, memoryview], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._partition = partition
        self._subscription = subscription
        self._on_pushed = on_pushed
        self._on_lost = on_lost
        self._armed = False
        self._epoch = -1
        self._taken_bytes = 0
        self._reported_bytes = 0
        self._lost = 0
        self._session_id = -1

    async def attach(self) -> AttachReply:
        """Wait until attached."""
        return await self._partition.attach(self)

    def follow(self, *, armed: bool) -> None:
        """Send whether somebody waits for entries, and how many bytes have arrived."""
        self._armed = armed
        self._report()

    def _report(self) -> None:
        self._reported_bytes = self._taken_bytes
        self._partition.send(Follow(0, self._epoch, self._armed, self._taken_bytes, self._subscription))

    async def wait_armed(self) -> None:
        """Return once the partition sends what is published from now on.

        Raises the errors of calling it.
        """
        while not (await self.look())["armed"]:
            self._report()
            await asyncio.sleep(RETRY_S)

    async def look(self) -> dict[str, Any]:
        """Return the partition's view of this follower."""
        following: dict[str, Any] = await self._partition.call("following")
        self._learn(following["epoch"], following["dropped"])
        return following

    async def unfollow(self) -> None:
        """Leave, so that the partition counts no drops for a subscription that is gone."""
        with contextlib.suppress(PulsarException):
            await self._partition.call_once("unfollow", {})
        self._partition.close()

    # --- the endpoint: called on the owner loop, but for losses and attachments -------------------

    def reopen(self, attached: AttachReply) -> None:
        """Ask for new entries: attached again, and those that were under way are lost."""
        if attached.session_id != self._session_id:
            # A new session there counts from nothing.
            self._session_id, self._lost = attached.session_id, 0
        self._report()

    def on_refused(self, error: PulsarException) -> None:
        """Do nothing: the topic was deleted, and the controller ends this actor too."""

    def send_last(self) -> None:
        """Do nothing: a follower holds nothing back."""

    def on_detached(self) -> None:
        """Do nothing: nothing that was missed comes again."""

    def on_request(self, request: Any, body: memoryview) -> None:
        """Take in a Pushed packet."""
        if isinstance(request, Pushed):
            self._pushed(request, body)

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Do nothing: a follower publishes nothing."""

    def _pushed(self, packet: Pushed, body: memoryview) -> None:
        if packet.epoch == self._epoch and packet.sent_bytes <= self._taken_bytes:
            return
        self._learn(packet.epoch, packet.dropped_messages)
        self._taken_bytes = packet.sent_bytes
        self._on_pushed(packet, body)
        if self._taken_bytes - self._reported_bytes >= REPORT_BYTES:
            self._report()

    def _learn(self, epoch: int, dropped: int) -> None:
        if epoch != self._epoch:
            # Another life of the partition counts from nothing.
            self._epoch, self._taken_bytes, self._reported_bytes, self._lost = epoch, 0, 0, 0
        # An answer may be looked at after a packet that came behind it.
        if dropped > self._lost:
            self._on_lost(dropped - self._lost)
            self._lost = dropped
