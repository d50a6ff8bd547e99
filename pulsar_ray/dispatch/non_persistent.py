"""Dispatching a non-persistent topic: messages without a consumer with permits are dropped.

The subscription types are those of stored topics, with their policies. But nothing waits: whatever is not
granted at once is forgotten, and what is granted is forgotten as well. So there is no cursor, and nothing to
acknowledge or to deliver again.
"""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, DispatchBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.grant_maker import GrantMaker, RatedGrants
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_types.policy import GrantSource
from pulsar_ray.dispatch.subscription_types.subscription_type import SubscriptionType
from pulsar_ray.managed_ledger.cursor.redelivery_counts import RedeliveryCounts
from pulsar_ray.model.traffic import Drops


class NonPersistentDispatcher:
    """Decides who gets which message of one subscription of a non-persistent topic.

    `can_take(incarnation)` returns whether a consumer's connection takes more bytes just now: as in Pulsar, a
    slow reader loses messages and delays nobody. Unacknowledged messages are not counted. A batch goes whole
    for a single permit.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        *,
        topic: str,
        now_ms: int,
        can_take: Callable[[int], bool],
    ) -> None:
        self.settings = settings
        self.consumers: dict[int, Consumer] = {}
        self.drops = Drops(now_ms)
        self.blocks = DispatchBlocks()
        """Empty between any two calls."""
        self._topic = topic
        self._can_take = can_take
        self.type = SubscriptionType(settings, self.blocks)
        """The type of its consumers, with its policy and its slots of keys."""
        self._granting = GrantMaker(RedeliveryCounts(), self.blocks, self.type, self._room)
        self._rated = RatedGrants.of(settings, self._granting, None)

    # ---- consumers

    def attach_consumer(
        self, spec: ConsumerSpec, *, received: int = 0, received_messages: int = 0, credit: int = 0
    ) -> bool:
        """Attach a consumer, or attach it again; returns whether it was known.

        A known one goes on behind delivery `received`: what it missed is lost, and costs no permits. Of
        another the credit refers to `received_messages`, its count of received messages. A `credit` that
        comes along counts at once. Raises ConsumerBusy (Exclusive, another type or mode),
        ConsumerAssignError.
        """
        known = self.consumers.get(spec.incarnation)
        if known is not None:
            known.resume_after(received)
        else:
            if self.consumers:
                self.type.check(spec)
            else:
                self.type.become(spec)
            self.type.policy.admit(spec, self.consumers.values())
            consumer = self.consumers[spec.incarnation] = Consumer(spec)
            consumer.granted = received_messages
            self.type.policy.join(consumer)
        if credit:
            self.set_credit(spec.incarnation, credit, 0, 0)
        return known is not None

    def remove_consumer(self, incarnation: int) -> None:
        """Remove a consumer for good."""
        consumer = self.consumers.pop(incarnation, None)
        if consumer is not None:
            self.type.policy.leave(consumer)

    def set_credit(self, incarnation: int, credit: int, received: int, handed_over: int) -> None:
        """A consumer's report: absolute credit, last number received, messages that have left its queue."""
        consumer = self.consumers.get(incarnation)
        if consumer is not None:
            consumer.set_credit(credit, received, handed_over)
            # No block waits until it fits whole: the rest is lost.
            consumer.window = 0

    def elect(self) -> None:
        """On Failover: elect the active consumer if others came or went.

        The former one keeps the messages that it has.
        """
        policy = self.type.electing
        if policy is not None:
            policy.elect(self._topic)

    # ---- granting

    def publish(self, published: ReadBlocks, now_ms: int) -> list[Grant]:
        """Grant what was published as far as there is room; drop and count the rest.

        Blocks come with their slots if there is a `slotting`.
        """
        self.elect()
        for ref, slots, _ in published.each():
            self.blocks.add_whole(DispatchBlock(ref, slots))
        source: GrantSource = self._granting
        if self._rated is not None:
            source = self._rated
        source.now_ms = now_ms
        grants = self.type.policy.dispatch(source)
        self.drops.record(self.blocks.waiting_messages)
        self.blocks.clear()
        return grants

    def _room(self, consumer: Consumer) -> int:
        """Its permits, or 0 while its connection is full."""
        return consumer.room(0) if self._can_take(consumer.spec.incarnation) else 0

    def settings_changed(self) -> None:
        """Take over the dispatch rate of now."""
        self._rated = RatedGrants.of(self.settings, self._granting, self._rated)
