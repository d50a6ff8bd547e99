"""Declares the options of `Client.subscribe` and `Client.create_reader`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any

from pulsar_ray.client.options.checks import MAX_INT, refuse
from pulsar_ray.client.options.crypto_key_reader import KeyReader
from pulsar_ray.client.options.declared import (
    Count,
    Flag,
    Interval,
    Metadata,
    OptionalText,
    Properties,
    Text,
    check_each,
    function,
    instance,
    member,
    number,
    optional_instance,
    optional_number,
)
from pulsar_ray.client.options.given_schema import GivenSchema, as_schema
from pulsar_ray.client.options.not_yet import refuse_not_yet
from pulsar_ray.client.options.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerEventListener,
    ConsumerKeySharedPolicy,
    RedeliveryBackoff,
)
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError, OperationNotSupported
from pulsar_ray.model.enums import (
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import NON_PERSISTENT, TopicName

logger = logging.getLogger(__name__)

Topics = str | list[str] | re.Pattern[str]
_LOWEST_ACK_TIMEOUT_MS = 1000
_LOWEST_ACK_TICK_MS = 100
_DEFAULT_MAX_REDELIVER_COUNT = 16
_HIGHEST_NUMBER = 2**62
_UNORDERED = (ConsumerType.Shared, ConsumerType.KeyShared)


def _check_topics(name: str, value: Any) -> None:
    is_list_of_text = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if not (isinstance(value, (str, re.Pattern)) or is_list_of_text):
        raise refuse(name, value, "a str, a list of str or a compiled regular expression")
    if value == []:
        raise refuse(name, value, "a list of at least one topic")


Backoff = Annotated[
    RedeliveryBackoff | None,
    optional_instance(RedeliveryBackoff, "an object with next(redelivery_count)"),
]
CryptoFailureAction = Annotated[ConsumerCryptoFailureAction, member(ConsumerCryptoFailureAction)]


@dataclass(frozen=True)
class ConsumerOptions:
    """The arguments of `subscribe` with their defaults.

    Those of the official client come first, in its order. `checked` checks them. Readers build one directly.
    """

    topic: Annotated[Topics, _check_topics]
    subscription_name: Text
    consumer_type: Annotated[ConsumerType, member(ConsumerType)] = ConsumerType.Exclusive
    schema: GivenSchema = field(default_factory=BytesSchema)
    message_listener: Annotated[Callable[..., Any] | None, function("a function (Consumer, Message)")] = None
    receiver_queue_size: Annotated[int, number(0, MAX_INT)] = 1000
    max_total_receiver_queue_size_across_partitions: Count = 50_000
    consumer_name: OptionalText = None
    unacked_messages_timeout_ms: Annotated[int | None, optional_number(0)] = None
    broker_consumer_stats_cache_time_ms: Count = 30_000
    negative_ack_redelivery_delay_ms: Count = 60_000
    is_read_compacted: Flag = False
    properties: Metadata = None
    pattern_auto_discovery_period: Count = 60
    initial_position: Annotated[InitialPosition, member(InitialPosition)] = InitialPosition.Latest
    crypto_key_reader: KeyReader = None
    replicate_subscription_state_enabled: Flag = False
    max_pending_chunked_message: Count = 10
    auto_ack_oldest_chunked_message_on_queue_full: Flag = False
    start_message_id_inclusive: Flag = False
    batch_receive_policy: Annotated[
        ConsumerBatchReceivePolicy | None,
        optional_instance(ConsumerBatchReceivePolicy, "a ConsumerBatchReceivePolicy"),
    ] = None
    key_shared_policy: Annotated[
        ConsumerKeySharedPolicy | None,
        optional_instance(ConsumerKeySharedPolicy, "a ConsumerKeySharedPolicy"),
    ] = None
    batch_index_ack_enabled: Flag = False
    regex_subscription_mode: Annotated[RegexSubscriptionMode, member(RegexSubscriptionMode)] = (
        RegexSubscriptionMode.PersistentOnly
    )
    dead_letter_policy: Annotated[
        ConsumerDeadLetterPolicy | None,
        optional_instance(ConsumerDeadLetterPolicy, "a ConsumerDeadLetterPolicy"),
    ] = None
    crypto_failure_action: CryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    _: KW_ONLY
    subscription_mode: Annotated[SubscriptionMode, member(SubscriptionMode)] = SubscriptionMode.Durable
    priority_level: Annotated[int, number(0, MAX_INT)] = 0
    negative_ack_redelivery_backoff: Backoff = None
    ack_timeout_tick_time_ms: Annotated[int, number(_LOWEST_ACK_TICK_MS)] = 1000
    ack_timeout_redelivery_backoff: Backoff = None
    enable_retry: Flag = False
    ack_receipt_enabled: Flag = False
    ack_grouping_time_ms: Count = 100
    ack_grouping_max_size: Annotated[int, number(1)] = 1000
    expire_time_of_incomplete_chunked_message_ms: Count = 60_000
    consumer_event_listener: Annotated[
        ConsumerEventListener | None,
        optional_instance(ConsumerEventListener, "a ConsumerEventListener"),
    ] = None
    subscription_properties: Properties = None
    start_paused: Flag = False
    auto_update_partitions: Flag = True
    auto_update_partitions_interval_seconds: Interval = 60

    @property
    def first_start(self) -> dict[str, Any] | None:
        """The start of a non-durable cursor; None for a durable one.

        These are the arguments of a seek.
        """
        if self.subscription_mode == SubscriptionMode.Durable:
            return None
        if self.initial_position == InitialPosition.Earliest:
            return {"target": "earliest", "inclusive": True}
        return {"target": "latest", "inclusive": False}

    @property
    def key_shared(self) -> tuple[int, bool, list[tuple[int, int]]] | None:
        """The Key_Shared policy in a dispatcher's words: mode, out of order, sticky ranges."""
        policy = self.key_shared_policy
        if policy is None:
            return None
        return int(policy.key_shared_mode), policy.allow_out_of_order_delivery, policy.sticky_ranges

    @property
    def chunk_limits(self) -> tuple[int, bool, int]:
        """How incomplete messages in chunks are kept, in a dispatcher's words."""
        return (
            min(self.max_pending_chunked_message, _HIGHEST_NUMBER),
            self.auto_ack_oldest_chunked_message_on_queue_full,
            min(self.expire_time_of_incomplete_chunked_message_ms, _HIGHEST_NUMBER),
        )

    @property
    def max_failures(self) -> int | None:
        """How often a message may fail before it is moved to the dead letter topic.

        None without a limit.
        """
        policy = self.dead_letter_policy
        return None if policy is None or self.consumer_type not in _UNORDERED else policy.max_redeliver_count

    @property
    def count_crashes(self) -> bool:
        """Whether a message that ended the consumer's process has failed."""
        return self.dead_letter_policy is None or self.dead_letter_policy.count_crashes

    @classmethod
    def from_arguments(cls, **arguments: Any) -> ConsumerOptions:
        """Make and check the arguments of a call of `subscribe`."""
        return cls(**arguments).checked()

    def checked(self) -> ConsumerOptions:
        """Check the arguments of a call of `subscribe`.

        Raises ValueError for a wrong type or value, InvalidConfiguration for an empty subscription name or
        start_paused without a listener, OperationNotSupported for what is not there yet.
        """
        check_each(self)
        _check_together(self)
        _check_compacted(self)
        _check_ack_timeout(self)
        _check_dead_letters(self)
        refuse_not_yet("subscribe", vars(self))
        policy = self.dead_letter_policy
        if self.enable_retry and policy is None:
            policy = ConsumerDeadLetterPolicy(_DEFAULT_MAX_REDELIVER_COUNT)
        return replace(
            self,
            consumer_name=self.consumer_name or None,
            schema=as_schema(self.schema),
            dead_letter_policy=policy,
        )


def _check_together(options: ConsumerOptions) -> None:
    if not options.subscription_name:
        raise InvalidConfiguration("subscription_name is empty; give the subscription a name")
    if options.key_shared_policy is not None and options.consumer_type != ConsumerType.KeyShared:
        raise InvalidConfiguration(
            f"key_shared_policy has no effect with {options.consumer_type!s}: subscribe with "
            "ConsumerType.KeyShared, or leave it out"
        )
    if options.start_paused and options.message_listener is None:
        raise InvalidConfiguration("start_paused=True needs a message_listener; receive() is never paused")


def _check_dead_letters(options: ConsumerOptions) -> None:
    if options.consumer_type in _UNORDERED:
        return
    if options.enable_retry:
        raise InvalidConfiguration(
            f"enable_retry=True with {options.consumer_type!s}: a message that is retried later would leave "
            "its place in the order; subscribe with ConsumerType.Shared or KeyShared, or leave it out"
        )
    if options.dead_letter_policy is not None:
        logger.warning(
            "dead_letter_policy has no effect with %s: failed messages come again in order; subscribe with "
            "ConsumerType.Shared or KeyShared to have them moved",
            options.consumer_type,
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


def _check_ack_timeout(options: ConsumerOptions) -> None:
    timeout = options.unacked_messages_timeout_ms
    if not timeout:
        return
    if timeout < _LOWEST_ACK_TIMEOUT_MS:
        raise refuse("unacked_messages_timeout_ms", timeout, "at least 1000, or 0 or None for no timeout")
    if options.ack_timeout_tick_time_ms > timeout:
        raise refuse(
            "ack_timeout_tick_time_ms", options.ack_timeout_tick_time_ms, f"at most the timeout {timeout}"
        )


@dataclass(frozen=True)
class ReaderOptions:
    """The arguments of `create_reader` with their defaults.

    Those of the official client come first, in its order. `from_arguments` makes and checks them.
    """

    topic: Annotated[str, instance(str, "a str")]
    start_message_id: Annotated[MessageId, instance(MessageId, "a MessageId")]
    schema: GivenSchema = field(default_factory=BytesSchema)
    reader_listener: Annotated[Callable[..., Any] | None, function("a function (Reader, Message)")] = None
    receiver_queue_size: Annotated[int, number(0, MAX_INT)] = 1000
    reader_name: OptionalText = None
    subscription_role_prefix: OptionalText = None
    is_read_compacted: Flag = False
    crypto_key_reader: KeyReader = None
    start_message_id_inclusive: Flag = False
    crypto_failure_action: CryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    _: KW_ONLY
    auto_update_partitions: Flag = True
    auto_update_partitions_interval_seconds: Interval = 60

    @classmethod
    def from_arguments(cls, **arguments: Any) -> ReaderOptions:
        """Check the arguments of a call of `create_reader`.

        Raises ValueError for a wrong type or value, OperationNotSupported for what is not there yet.
        """
        options = cls(**arguments)
        check_each(options)
        _check_place(options)
        if options.is_read_compacted and not TopicName.parse(options.topic).is_persistent:
            raise NotAllowedError(
                f"is_read_compacted=True on {options.topic}: it is non-persistent and keeps nothing; use a "
                "persistent:// topic"
            )
        refuse_not_yet("create_reader", vars(options))
        return replace(
            options,
            reader_name=options.reader_name or None,
            schema=as_schema(options.schema),
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
            is_read_compacted=self.is_read_compacted,
            crypto_key_reader=self.crypto_key_reader,
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
