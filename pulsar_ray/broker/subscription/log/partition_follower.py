"""Following a partition's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.broker.subscription.log.partition_link import PartitionLink
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import Advanced, Expired, Follow, MoveHold
from pulsar_ray.transport.cluster import AttachReply


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

    def move_hold(self, ledger_id: int, entry_id: int) -> None:
        """Report a durable mark-delete position, also over the next carrier: this one may lose it."""
        self._hold = Position(ledger_id, entry_id)
        self._partition.send(MoveHold(self._number, ledger_id, entry_id))

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
            self.move_hold(*self._hold)

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
