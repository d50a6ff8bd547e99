"""One subscription of a non-persistent topic in its dispatcher's process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pulsar_ray.broker.subscription.non_persistent.passing_sender import Bodies
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.read_blocks import ReadBlocks
from pulsar_ray.dispatch.key_shared.block_slots import SlotsOfBlocks
from pulsar_ray.dispatch.key_shared.sticky_key import Slots, Slotting
from pulsar_ray.dispatch.non_persistent import NonPersistentDispatcher
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.compression import UnknownCodec
from pulsar_ray.model.position import EARLIEST


class NoLog:
    """An empty log, and a `Feeder` that never has anything."""

    problem = ""
    last = EARLIEST

    def feed(self, resume: Callable[[], None]) -> bool:
        return False

    def extend_to_end(self) -> None:
        """Extend nothing."""

    def extend_ledgers(self) -> None:
        """Extend nothing."""

    def forget_place(self) -> None:
        """Forget nothing."""


class PassingSubscription:
    """Runs on the owner loop; `served` has the consumers, `bodies` is shared with their senders."""

    def __init__(self, served: ServedSubscription, core: NonPersistentDispatcher, bodies: Bodies) -> None:
        self.served = served
        self._core = core
        self._bodies = bodies

    def publish(self, blocks: Sequence[BlockRef], bodies: Bodies) -> None:
        """Give blocks to consumers with room; for the others they are lost."""
        now_ms = self.served.now_ms()
        self.served.turn.elect(now_ms)
        self._bodies.update(bodies)
        slotting = self._core.slotting
        slots = None if slotting is None else _slots(bodies.values(), slotting)
        self._core.offer(ReadBlocks(blocks, slots), self._core.seek_generation)
        self.served.turn.dispatch(now_ms)
        self._bodies.clear()

    def tick(self) -> None:
        """Sample rates, those of drops included; once a second."""
        self.served.tick()
        self._core.drops.sample(self.served.now_ms())

    def lost(self, messages: int) -> None:
        """Count messages that were dropped before they came here."""
        self._core.drops.record(messages)

    def stats(self) -> dict[str, Any]:
        """Describe the subscription with Pulsar's names; `msgDropRate` is the rate of `msgDropCounter`."""
        return {
            **self.served.stats(),
            "isDurable": False,
            "msgBacklog": 0,
            "markDeletePosition": [-1, -1],
            "readPosition": [-1, -1],
            **self._core.drops.describe(),
        }


def _slots(bodies: Iterable[memoryview], slotting: Slotting) -> list[Slots]:
    """Find the slots of blocks' rows; a block that cannot be decoded counts as keyless."""
    blocks = SlotsOfBlocks(slotting)
    for body in bodies:
        try:
            blocks.add_block(body)
        except (PulsarException, UnknownCodec, ValueError):
            blocks.add_unreadable()
    return blocks.take()
