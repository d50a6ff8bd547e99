"""One subscription of a non-persistent topic in its dispatcher's process, and its connected consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.consumers.consumer_endpoint import (
    MAX_BODY_BYTES,
    MAX_GRANTS_PER_PACKET,
    ConsumerEndpoint,
)
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.key_shared.block_slots import SlotsOfBlocks
from pulsar_ray.dispatch.key_shared.sticky_key import Slots, Slotting
from pulsar_ray.dispatch.non_persistent import NonPersistentDispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.compression import UnknownCodec
from pulsar_ray.session.requests import ConsumerOpened, OpenConsumer
from pulsar_ray.session.session_table import Session

MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""A consumer whose connection has more to write than this gets nothing until it has less."""

Bodies = dict[tuple[int, int], memoryview]
"""The bytes of blocks by (ledger id, first entry id)."""


class PassingEndpoint(ConsumerEndpoint):
    """Writes a grant's bytes to the consumer in the moment it is granted; nothing waits here."""

    bodies: Bodies
    """Of the blocks that are passing just now."""
    attachment: int
    """Of its session, when its consumer opened it: on a later one the consumer has to open again first."""

    @property
    def can_take(self) -> bool:
        """Whether it is open, and its connection not full."""
        carrier = self.session.carrier
        if self._early is not None or carrier is None or self.session.attachment != self.attachment:
            return False
        return carrier.unsent_bytes <= MAX_UNSENT_BYTES

    def deliver(self, grants: Sequence[Grant], generation: int) -> None:
        """Send grants of blocks that are passing."""
        part: list[Grant] = []
        size = 0
        for grant in grants:
            if part and (size + grant.block.length > MAX_BODY_BYTES or len(part) == MAX_GRANTS_PER_PACKET):
                self._send(part, generation)
                part, size = [], 0
            part.append(grant)
            size += grant.block.length
        if part:
            self._send(part, generation)

    def _send(self, part: list[Grant], generation: int) -> None:
        body = [self.bodies[grant.block.ledger_id, grant.block.first_entry_id] for grant in part]
        self.session.send(self._encode_deliver(generation, part, body))


class NonPersistentSubscription(ServedSubscription):
    """Runs on the owner loop. It has no log to read and no cursor to write."""

    core: NonPersistentDispatcher

    def __init__(
        self,
        name: str,
        topic: str,
        settings: DispatchSettings,
        epoch: int,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        reader: DiskThread,
        cursor_disk: DiskThread,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        core = NonPersistentDispatcher(
            name,
            settings,
            topic=topic,
            epoch=epoch,
            now_ms=clock.monotonic_ms(),
            can_take=self._can_take,
        )
        self._bodies: Bodies = {}
        super().__init__(
            name,
            core,
            None,
            LogView(),
            clock,
            loop,
            reader,
            cursor_disk,
            "",
            on_mark_delete=lambda _: None,
            on_fatal=on_fatal,
            on_demand=lambda: None,
        )

    @property
    def waits_for_entries(self) -> bool:
        """Also of consumers without room: what they lose is counted."""
        return bool(self.endpoints)

    def _can_take(self, incarnation: int) -> bool:
        endpoint = self.endpoints.get(incarnation)
        return isinstance(endpoint, PassingEndpoint) and endpoint.can_take

    def _new_endpoint(self, session: Session, request: OpenConsumer, numbering: int) -> ConsumerEndpoint:
        endpoint = PassingEndpoint(
            session,
            request.consumer_id,
            request.incarnation,
            request.name,
            "",
            numbering,
            self._loop,
            self._reader,
            reads_files=False,
        )
        endpoint.bodies = self._bodies
        endpoint.attachment = session.attachment
        return endpoint

    async def open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        """As of a stored topic; its first credit comes with it."""
        opened = await super().open_consumer(session, request)
        self.core.set_credit(request.incarnation, request.credit, 0, 0)
        return opened

    def publish(self, blocks: Sequence[BlockRef], bodies: Bodies) -> None:
        """Give blocks to consumers with room; for the others they are lost."""
        now_ms = self.now_ms()
        self.turn.elect(now_ms)
        self._bodies.update(bodies)
        slotting = self.core.slotting
        slots = None if slotting is None else _slots(bodies.values(), slotting)
        self.core.offer(blocks, self.core.seek_generation, slots)
        self.turn.dispatch(now_ms)
        self._bodies.clear()

    def sample(self) -> None:
        """Once a second, for the rate of drops."""
        self.core.drops.sample(self.now_ms())

    def lost(self, messages: int) -> None:
        """So many messages were dropped before they came here."""
        self.core.drops.record(messages)

    def stats(self) -> dict[str, Any]:
        """Pulsar's names where Pulsar has one; `msgDropCounter` is all that `msgDropRate` is the rate of."""
        return {
            **super().stats(),
            "isDurable": False,
            "msgBacklog": 0,
            "markDeletePosition": [-1, -1],
            "readPosition": [-1, -1],
            **self.core.drops.describe(),
        }


def _slots(bodies: Iterable[memoryview], slotting: Slotting) -> list[Slots]:
    """The slots of the rows of blocks; a block that cannot be decoded counts as keyless."""
    blocks = SlotsOfBlocks(slotting)
    for body in bodies:
        try:
            blocks.add_block(body)
        except (PulsarException, UnknownCodec, ValueError):
            blocks.add_unreadable()
    return blocks.take()
