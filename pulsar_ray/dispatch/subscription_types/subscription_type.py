"""The type of a subscription: the first consumer's, until the last one has left."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.key_shared.policy import KeySharedPolicy, new_regions
from pulsar_ray.dispatch.key_shared.sticky_key import Slotting
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_types.failover import FailoverPolicy
from pulsar_ray.dispatch.subscription_types.policy import DispatchPolicy
from pulsar_ray.dispatch.subscription_types.shared import SharedPolicy
from pulsar_ray.dispatch.subscription_types.single_active import SingleActivePolicy
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model.enums import ConsumerType

POLICIES: dict[ConsumerType, Callable[[DispatchSettings], DispatchPolicy]] = {
    ConsumerType.Exclusive: lambda _: SingleActivePolicy(),
    ConsumerType.Shared: SharedPolicy,
    ConsumerType.Failover: lambda _: FailoverPolicy(),
}


class SubscriptionType:
    """The type of a subscription's consumers, with its policy and its slots of keys."""

    def __init__(self, settings: DispatchSettings, blocks: DispatchBlocks) -> None:
        self._settings = settings
        self._blocks = blocks
        self.kind: ConsumerType | None = None
        """The type the consumers have, or had last; None before the first."""
        self.policy: DispatchPolicy = SingleActivePolicy()
        self.keyed: KeySharedPolicy | None = None
        """The policy, if the consumers are Key_Shared."""
        self.slotting: Slotting | None = None
        """The slots that offered blocks must come with."""

    def check(self, spec: ConsumerSpec) -> None:
        """Raise ConsumerBusy if a consumer has another type than those present."""
        if spec.consumer_type != self.kind:
            raise ConsumerBusy(
                f"the subscription has {self.kind!s} consumers, so {spec.consumer_type!s} is refused"
            )

    def become(self, spec: ConsumerSpec) -> bool:
        """Take the type of a first consumer.

        True if blocks that were read before came without the slots it needs: they have to be read again.
        """
        self.kind = spec.consumer_type
        if spec.consumer_type is not ConsumerType.KeyShared:
            self.keyed = self.slotting = self._blocks.watcher = None
            self.policy = POLICIES[spec.consumer_type](self._settings)
            return False
        regions = new_regions(spec.key_shared, self._settings.key_shared_replica_points)
        self.policy = self.keyed = KeySharedPolicy(spec.key_shared.mode, regions, self._blocks)
        needs_slots = self.slotting is not regions.slotting
        self.slotting = regions.slotting
        return needs_slots

    @property
    def heeds_delays(self) -> bool:
        """Whether delayed messages have to wait: order matters more to the other types."""
        return self.kind in (ConsumerType.Shared, ConsumerType.KeyShared)

    @property
    def electing(self) -> FailoverPolicy | None:
        """The policy, if it has to elect the active consumer because others came or went."""
        return self.policy if isinstance(self.policy, FailoverPolicy) and self.policy.must_elect else None
