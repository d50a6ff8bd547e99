"""The stats of a Key_Shared subscription, with Pulsar's field names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.key_shared.policy import KeySharedPolicy
from pulsar_ray.dispatch.key_shared.sticky_key import NON_KEY, Slotting, slot_of
from pulsar_ray.dispatch.subscription_types.subscription_type import SubscriptionType
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.enums import KeySharedMode

_MODES = {KeySharedMode.AutoSplit: "AUTO_SPLIT", KeySharedMode.Sticky: "STICKY"}
_SUMS = ("drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages")


class KeyedConsumers(Protocol):
    """The part of a core that tells of its consumers."""

    blocks: DispatchBlocks

    @property
    def consumers(self) -> Mapping[int, Consumer]:
        """By incarnation."""

    @property
    def type(self) -> SubscriptionType:
        """The type of its consumers."""


def key_shared_stats(dispatcher: KeyedConsumers) -> dict[str, Any]:
    """Mode and draining hashes of all consumers together; nothing for other types."""
    keyed = dispatcher.type.keyed
    if keyed is None or not dispatcher.consumers:
        return {}
    stats = [keyed.routes.draining.stats(incarnation) for incarnation in dispatcher.consumers]
    return {
        "keySharedMode": _MODES[keyed.mode],
        "allowOutOfOrderDelivery": any(
            consumer.spec.key_shared.allow_out_of_order_delivery for consumer in dispatcher.consumers.values()
        ),
        "msgInReplay": dispatcher.blocks.waiting_messages,
        **{name: sum(one[name] for one in stats) for name in _SUMS},
    }


def key_shared_consumer_stats(dispatcher: KeyedConsumers, incarnation: int) -> dict[str, Any]:
    """A consumer's hash ranges as inclusive pairs, and its draining hashes; nothing for other types."""
    keyed = dispatcher.type.keyed
    if keyed is None or incarnation not in dispatcher.consumers:
        return {}
    return {
        "keyHashRangeArrays": key_hash_range_arrays(keyed, incarnation),
        **keyed.routes.draining.stats(incarnation),
    }


def key_hash_range_arrays(keyed: KeySharedPolicy, incarnation: int) -> list[list[int]]:
    """The consumer's slots as inclusive pairs."""
    return [[first, last] for first, last, owner in keyed.routes.regions.regions() if owner == incarnation]


def key_owner(dispatcher: Dispatcher, key: str) -> dict[str, Any]:
    """Describe a key: its hash, its owner, and the consumer that still drains it.

    An ordering key counts alike.

    `owner` is None if nobody does, or nobody is connected. Raises NotAllowedError if the consumers are of
    another type.
    """
    keyed = dispatcher.type.keyed
    if not dispatcher.consumers:
        slotting = Slotting.RING if dispatcher.settings.key_shared_replica_points else Slotting.RANGE
        return {"key": key, "hash": slot_of(key or NON_KEY, slotting), "owner": None, "drainedBy": []}
    if keyed is None:
        raise NotAllowedError("the subscription's consumers are not Key_Shared: no key has an owner")
    slot = slot_of(key or NON_KEY, keyed.slotting)
    owner = keyed.routes.owner(slot)
    names = {incarnation: consumer.spec.name for incarnation, consumer in dispatcher.consumers.items()}
    return {
        "key": key,
        "hash": slot,
        "owner": None if owner is None else owner.spec.name,
        "drainedBy": [names[incarnation] for incarnation in keyed.routes.draining.holders(slot)],
    }
