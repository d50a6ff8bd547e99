"""Everything `Client.subscribe` and `Client.create_reader` can be told, checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pulsar_ray.client.options.checks import (
    MAX_INT,
    check_callable,
    check_enum,
    check_flag,
    check_metadata,
    check_number,
    check_optional,
    check_optional_number,
    check_optional_text,
    check_partition_updates,
    check_properties,
    check_text,
    check_type,
    refuse,
)
from pulsar_ray.client.options.not_yet import refuse_not_yet
from pulsar_ray.client.options.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerEventListener,
    ConsumerKeySharedPolicy,
    RedeliveryBackoff,
)
from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.errors import InvalidConfiguration, OperationNotSupported
from pulsar_ray.model.enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import NON_PERSISTENT, TopicName

Topics = str | list[str] | re.Pattern[str]
_LOWEST_ACK_TIMEOUT_MS = 1000
_LOWEST_ACK_TICK_MS = 100


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """The arguments of `subscribe` with their defaults; made by `from_arguments`, which checks them.

    Readers build one directly: their subscription is non-durable, which `from_arguments` refuses for now.
    """

    topic: Topics
    subscription_name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    schema: Schema = field(default_factory=BytesSchema)
    message_listener: Callable[..., Any] | None = None
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size_across_partitions: int = 50_000
    consumer_name: str | None = None
    unacked_messages_timeout_ms: int | None = None
    broker_consumer_stats_cache_time_ms: int = 30_000
    negative_ack_redelivery_delay_ms: int = 60_000
    is_read_compacted: bool = False
    properties: dict[str, str] | None = None
    pattern_auto_discovery_period: int = 60
    initial_position: InitialPosition = InitialPosition.Latest
    crypto_key_reader: Any = None
    replicate_subscription_state_enabled: bool = False
    max_pending_chunked_message: int = 10
    auto_ack_oldest_chunked_message_on_queue_full: bool = False
    start_message_id_inclusive: bool = False
    batch_receive_policy: ConsumerBatchReceivePolicy | None = None
    key_shared_policy: ConsumerKeySharedPolicy | None = None
    batch_index_ack_enabled: bool = False
    regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly
    dead_letter_policy: ConsumerDeadLetterPolicy | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    subscription_mode: SubscriptionMode = SubscriptionMode.Durable
    priority_level: int = 0
    negative_ack_redelivery_backoff: RedeliveryBackoff | None = None
    ack_timeout_tick_time_ms: int = 1000
    ack_timeout_redelivery_backoff: RedeliveryBackoff | None = None
    enable_retry: bool = False
    ack_receipt_enabled: bool = False
    ack_grouping_time_ms: int = 100
    ack_grouping_max_size: int = 1000
    expire_time_of_incomplete_chunked_message_ms: int = 60_000
    consumer_event_listener: ConsumerEventListener | None = None
    subscription_properties: dict[str, str] | None = None
    start_paused: bool = False
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: int = 60

    @property
    def first_start(self) -> dict[str, Any] | None:
        """Where a non-durable cursor begins, as the arguments of a seek; None for a durable one."""
        if self.subscription_mode == SubscriptionMode.Durable:
            return None
        if self.initial_position == InitialPosition.Earliest:
            return {"target": "earliest", "inclusive": True}
        return {"target": "latest", "inclusive": False}

    @property
    def key_shared(self) -> tuple[int, bool, list[tuple[int, int]]] | None:
        """The Key_Shared policy as a dispatcher is told of it: mode, out of order, sticky ranges."""
        policy = self.key_shared_policy
        if policy is None:
            return None
        return int(policy.key_shared_mode), policy.allow_out_of_order_delivery, policy.sticky_ranges

    @classmethod
    def from_arguments(cls, **arguments: Any) -> ConsumerOptions:
        """Check the arguments of a call of `subscribe`.

        Raises ValueError for a wrong type or value, InvalidConfiguration for an empty subscription name or
        start_paused without a listener, OperationNotSupported for what is not there yet.
        """
        options = cls(**arguments)
        _check_subscription(options)
        _check_key_shared(options)
        _check_compacted(options)
        _check_receiving(options)
        _check_acknowledgment(options)
        refuse_not_yet("subscribe", vars(options))
        return replace(options, consumer_name=options.consumer_name or None)


def _check_subscription(options: ConsumerOptions) -> None:
    topic = options.topic
    if not (isinstance(topic, (str, re.Pattern)) or _is_list_of_text(topic)):
        raise refuse("topic", topic, "a str, a list of str or a compiled regular expression")
    if topic == []:
        raise refuse("topic", topic, "a list of at least one topic")
    check_text("subscription_name", options.subscription_name)
    if not options.subscription_name:
        raise InvalidConfiguration("subscription_name is empty; give the subscription a name")
    check_enum("consumer_type", options.consumer_type, ConsumerType)
    check_type("schema", options.schema, Schema, "a Schema")
    check_optional_text("consumer_name", options.consumer_name)
    check_flag("is_read_compacted", options.is_read_compacted)
    check_metadata("properties", options.properties)
    check_number("pattern_auto_discovery_period", options.pattern_auto_discovery_period, 0)
    check_enum("initial_position", options.initial_position, InitialPosition)
    check_flag("replicate_subscription_state_enabled", options.replicate_subscription_state_enabled)
    check_flag("start_message_id_inclusive", options.start_message_id_inclusive)
    check_enum("regex_subscription_mode", options.regex_subscription_mode, RegexSubscriptionMode)
    check_enum("crypto_failure_action", options.crypto_failure_action, ConsumerCryptoFailureAction)
    check_enum("subscription_mode", options.subscription_mode, SubscriptionMode)
    check_number("priority_level", options.priority_level, 0, MAX_INT)
    check_partition_updates(options.auto_update_partitions, options.auto_update_partitions_interval_seconds)
    check_properties("subscription_properties", options.subscription_properties)


def _check_key_shared(options: ConsumerOptions) -> None:
    policy = options.key_shared_policy
    check_optional("key_shared_policy", policy, ConsumerKeySharedPolicy, "a ConsumerKeySharedPolicy")
    if policy is not None and options.consumer_type != ConsumerType.KeyShared:
        raise InvalidConfiguration(
            f"key_shared_policy has no effect with {options.consumer_type!s}: subscribe with "
            "ConsumerType.KeyShared, or leave it out"
        )


def _check_compacted(options: ConsumerOptions) -> None:
    if not options.is_read_compacted:
        return
    if options.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared):
        raise InvalidConfiguration(
            f"is_read_compacted=True with {options.consumer_type!s}: the latest value of each key is read in "
            "order, by an Exclusive or Failover subscription"
        )
    topics = options.topic if isinstance(options.topic, list) else [options.topic]
    for topic in topics:
        if isinstance(topic, str) and topic.startswith(f"{NON_PERSISTENT}://"):
            raise InvalidConfiguration(
                f"is_read_compacted=True on {topic}: it is non-persistent and keeps nothing; use a "
                "persistent:// topic"
            )


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _check_receiving(options: ConsumerOptions) -> None:
    check_callable("message_listener", options.message_listener, "a function (Consumer, Message)")
    check_number("receiver_queue_size", options.receiver_queue_size, 0)
    check_number(
        "max_total_receiver_queue_size_across_partitions",
        options.max_total_receiver_queue_size_across_partitions,
        0,
    )
    check_number("broker_consumer_stats_cache_time_ms", options.broker_consumer_stats_cache_time_ms, 0)
    check_number("max_pending_chunked_message", options.max_pending_chunked_message, 0)
    check_flag(
        "auto_ack_oldest_chunked_message_on_queue_full", options.auto_ack_oldest_chunked_message_on_queue_full
    )
    check_number(
        "expire_time_of_incomplete_chunked_message_ms",
        options.expire_time_of_incomplete_chunked_message_ms,
        0,
    )
    check_optional(
        "batch_receive_policy",
        options.batch_receive_policy,
        ConsumerBatchReceivePolicy,
        "a ConsumerBatchReceivePolicy",
    )
    check_optional(
        "consumer_event_listener",
        options.consumer_event_listener,
        ConsumerEventListener,
        "a ConsumerEventListener",
    )
    check_flag("start_paused", options.start_paused)
    if options.start_paused and options.message_listener is None:
        raise InvalidConfiguration("start_paused=True needs a message_listener; receive() is never paused")


def _check_acknowledgment(options: ConsumerOptions) -> None:
    timeout = options.unacked_messages_timeout_ms
    check_optional_number("unacked_messages_timeout_ms", timeout, 0)
    if timeout and timeout < _LOWEST_ACK_TIMEOUT_MS:
        raise refuse("unacked_messages_timeout_ms", timeout, "at least 1000, or 0 or None for no timeout")
    check_number("ack_timeout_tick_time_ms", options.ack_timeout_tick_time_ms, _LOWEST_ACK_TICK_MS)
    if timeout and options.ack_timeout_tick_time_ms > timeout:
        raise refuse(
            "ack_timeout_tick_time_ms", options.ack_timeout_tick_time_ms, f"at most the timeout {timeout}"
        )
    check_number("negative_ack_redelivery_delay_ms", options.negative_ack_redelivery_delay_ms, 0)
    for name in ("negative_ack_redelivery_backoff", "ack_timeout_redelivery_backoff"):
        check_optional(
            name, getattr(options, name), RedeliveryBackoff, "an object with next(redelivery_count)"
        )
    check_optional(
        "dead_letter_policy",
        options.dead_letter_policy,
        ConsumerDeadLetterPolicy,
        "a ConsumerDeadLetterPolicy",
    )
    for name in ("batch_index_ack_enabled", "enable_retry", "ack_receipt_enabled"):
        check_flag(name, getattr(options, name))
    check_number("ack_grouping_time_ms", options.ack_grouping_time_ms, 0)
    check_number("ack_grouping_max_size", options.ack_grouping_max_size, 1)


@dataclass(frozen=True, kw_only=True)
class ReaderOptions:
    """The arguments of `create_reader` with their defaults; made by `from_arguments`, which checks them."""

    topic: str
    start_message_id: MessageId
    schema: Schema = field(default_factory=BytesSchema)
    reader_listener: Callable[..., Any] | None = None
    receiver_queue_size: int = 1000
    reader_name: str | None = None
    subscription_role_prefix: str | None = None
    is_read_compacted: bool = False
    crypto_key_reader: Any = None
    start_message_id_inclusive: bool = False
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: int = 60

    @classmethod
    def from_arguments(cls, **arguments: Any) -> ReaderOptions:
        """Check the arguments of a call of `create_reader`.

        Raises ValueError for a wrong type or value, OperationNotSupported for what is not there yet.
        """
        options = cls(**arguments)
        check_type("topic", options.topic, str, "a str")
        check_type("start_message_id", options.start_message_id, MessageId, "a MessageId")
        check_type("schema", options.schema, Schema, "a Schema")
        check_callable("reader_listener", options.reader_listener, "a function (Reader, Message)")
        check_number("receiver_queue_size", options.receiver_queue_size, 0)
        check_optional_text("reader_name", options.reader_name)
        check_optional_text("subscription_role_prefix", options.subscription_role_prefix)
        check_flag("is_read_compacted", options.is_read_compacted)
        check_flag("start_message_id_inclusive", options.start_message_id_inclusive)
        check_enum("crypto_failure_action", options.crypto_failure_action, ConsumerCryptoFailureAction)
        check_partition_updates(
            options.auto_update_partitions, options.auto_update_partitions_interval_seconds
        )
        _check_place(options)
        refuse_not_yet("create_reader", vars(options))
        return replace(
            options,
            reader_name=options.reader_name or None,
            subscription_role_prefix=options.subscription_role_prefix or None,
        )

    def consumer_options(self, subscription_name: str) -> ConsumerOptions:
        """The non-durable subscription that carries this reader."""
        return ConsumerOptions(
            topic=self.topic,
            subscription_name=subscription_name,
            consumer_type=ConsumerType.Exclusive,
            schema=self.schema,
            receiver_queue_size=self.receiver_queue_size,
            consumer_name=self.reader_name,
            start_message_id_inclusive=self.start_message_id_inclusive,
            crypto_failure_action=self.crypto_failure_action,
            subscription_mode=SubscriptionMode.NonDurable,
            auto_update_partitions=self.auto_update_partitions,
            auto_update_partitions_interval_seconds=self.auto_update_partitions_interval_seconds,
        )


def _check_place(options: ReaderOptions) -> None:
    known = options.start_message_id.topic_name
    if known and known != (topic := TopicName.parse(options.topic).full):
        if TopicName.parse(known).partitioned_full == topic:
            return  # of one of its partitions, which matters only once it is known how many there are
        raise OperationNotSupported(
            f"start_message_id={options.start_message_id} belongs to {known}, the reader to {topic}: give an "
            "id of that topic"
        )
