"""What a consumer says of itself when it opens."""

from __future__ import annotations

from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.key_shared.hash_regions import key_shared_spec
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.session.requests import OpenConsumer


def spec_of(request: OpenConsumer, numbering: int) -> ConsumerSpec:
    """`numbering` is higher than what any consumer that subscribed before can say of itself."""
    return ConsumerSpec(
        request.incarnation,
        request.name,
        ConsumerType(request.consumer_type),
        request.priority_level,
        request.batch_index_ack,
        request.joined if 0 < request.joined < numbering else numbering,
        request.is_multi_topic,
        key_shared_spec(request.key_shared),
    )
