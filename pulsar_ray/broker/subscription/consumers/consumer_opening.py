"""Checks and describes a consumer that opens."""

from __future__ import annotations

from collections.abc import Collection

from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS, ChunkLimits
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.key_shared.hash_regions import key_shared_spec
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.session.requests import OpenConsumer


def check_limit(settings: DispatchSettings, present: Collection[int], request: OpenConsumer) -> None:
    """Raise ConsumerBusy for a consumer that is new, and one too many; `present` are incarnations."""
    limit = settings.max_consumers_per_subscription
    if 0 < limit <= len(present) and not request.joined and request.incarnation not in present:
        raise ConsumerBusy(
            f"the subscription has {len(present)} consumers, and the policy max_consumers_per_subscription "
            f"allows {limit}: close one, or raise the policy"
        )


def spec_of(request: OpenConsumer, numbering: int) -> ConsumerSpec:
    """Describe a consumer; `numbering` is higher than any that subscribed before can name."""
    return ConsumerSpec(
        request.incarnation,
        request.name,
        ConsumerType(request.consumer_type),
        request.priority_level,
        request.batch_index_ack,
        request.joined if 0 < request.joined < numbering else numbering,
        request.is_multi_topic,
        key_shared_spec(request.key_shared),
        DEFAULT_LIMITS if request.chunk_limits is None else ChunkLimits(*request.chunk_limits),
    )
