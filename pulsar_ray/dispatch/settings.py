"""The settings of the broker that a dispatcher heeds."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pulsar_ray.config import SUBSCRIPTION_TYPES, Settings


@dataclass(slots=True)
class DispatchSettings:
    """The settings a dispatcher heeds, as they hold now; 0 means no limit.

    All parts of a dispatcher read this one object, which changes with the topic's policies.
    """

    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    acknowledgment_at_batch_index_level_enabled: bool = False
    reattach_grace_ms: int = 5_000
    stuck_after_ms: int = 30_000
    """A subscription that could move and does not is warned of then; 0: never."""
    key_shared_replica_points: int = 0
    """Points of a consumer on the ring of Key_Shared; 0: no ring, hash ranges."""
    look_ahead_messages_per_consumer: int = 2_000
    """Key_Shared reads on past messages that cannot go anywhere now until so many wait."""
    look_ahead_messages_per_subscription: int = 20_000
    delayed_delivery_enabled: bool = True
    delayed_delivery_tick_ms: int = 1_000
    """Unless it is strict, a message may be delivered so much before its time."""
    delayed_delivery_is_strict: bool = False
    most_delayed_rows_in_memory: int = 100_000
    dispatch_rate_messages: int = 0
    dispatch_rate_bytes: int = 0
    """A second, of each subscription."""
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_properties_bytes: int = 0
    max_properties_bytes_per_actor: int = 0
    subscription_types: frozenset[str] = frozenset(SUBSCRIPTION_TYPES)
    """The types that new consumers may have."""
    max_round_robin_batch_size: int = 20
    """Messages, beside a batch, that a Shared consumer may get above another with room."""
    remote_durability: str = "async"
    """Whether receipts of acknowledgments wait for the object store, if there is one."""
    remote_lag_seconds: int = 30
    max_pending_acks_per_subscription: int = 1_000_000
    """Blocks, or parts of them, that consumers hold unacknowledged: they are what takes memory here."""

    @classmethod
    def of(cls, settings: Settings, *, are_current: bool = True) -> DispatchSettings:
        """Make them from the settings of the topic.

        While these are not known to be those of now, delayed messages come no earlier than any would have it.
        """
        return cls(
            remote_durability=settings.remote_durability if are_current else "sync",
            remote_lag_seconds=settings.remote_lag_seconds,
            max_unacked_messages_per_consumer=settings.max_unacked_messages_per_consumer,
            max_unacked_messages_per_subscription=settings.max_unacked_messages_per_subscription,
            max_pending_acks_per_subscription=settings.max_pending_acks_per_subscription,
            max_round_robin_batch_size=settings.dispatcher_max_round_robin_batch_size,
            delayed_delivery_enabled=settings.delayed_delivery_enabled or not are_current,
            delayed_delivery_tick_ms=settings.delayed_delivery_tick_time_millis,
            delayed_delivery_is_strict=settings.is_delayed_delivery_deliver_at_time_strict or not are_current,
            most_delayed_rows_in_memory=settings.max_num_delayed_delivery_tracker_memory_entries,
            dispatch_rate_messages=settings.dispatch_throttling_rate_per_subscription_in_msg,
            dispatch_rate_bytes=settings.dispatch_throttling_rate_per_subscription_in_byte,
            max_consumers_per_topic=settings.max_consumers_per_topic,
            max_consumers_per_subscription=settings.max_consumers_per_subscription,
            max_subscriptions_per_topic=settings.max_subscriptions_per_topic,
            max_properties_bytes=settings.max_properties_bytes,
            max_properties_bytes_per_actor=settings.max_properties_bytes_per_actor,
            subscription_types=settings.subscription_types(),
            acknowledgment_at_batch_index_level_enabled=settings.acknowledgment_at_batch_index_level_enabled,
            reattach_grace_ms=int(settings.reattach_grace_seconds * 1000),
            stuck_after_ms=int(settings.stuck_subscription_warning_seconds * 1000),
            key_shared_replica_points=settings.subscription_key_shared_consistent_hashing_replica_points
            if settings.subscription_key_shared_use_consistent_hashing
            else 0,
            look_ahead_messages_per_consumer=settings.key_shared_look_ahead_msg_in_replay_threshold_per_consumer,
            look_ahead_messages_per_subscription=settings.key_shared_look_ahead_msg_in_replay_threshold_per_subscription,
        )

    def take(self, settings: Settings, *, are_current: bool = True) -> None:
        """Let other settings hold from now on."""
        others = DispatchSettings.of(settings, are_current=are_current)
        for field in fields(self):
            setattr(self, field.name, getattr(others, field.name))
