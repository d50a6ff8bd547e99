"""Everything `Client.create_producer` can be told, checked."""

from __future__ import annotations

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
    check_optional_number,
    check_optional_text,
    check_partition_updates,
    check_type,
    refuse,
)
from pulsar_ray.client.options.not_yet import refuse_not_yet
from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)

MessageRouter = Callable[[Message, int], int]
"""A user's router: (message, number of partitions) -> partition index."""


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """The arguments of `create_producer` with their defaults; made by `from_arguments`, which checks them."""

    topic: str
    producer_name: str | None = None
    schema: Schema = field(default_factory=BytesSchema)
    initial_sequence_id: int | None = None
    send_timeout_millis: int = 30_000
    compression_type: CompressionType = CompressionType.NONE
    max_pending_messages: int = 1000
    max_pending_messages_across_partitions: int = 50_000
    block_if_queue_full: bool = False
    batching_enabled: bool = False
    batching_max_messages: int = 1000
    batching_max_allowed_size_in_bytes: int = 131_072
    batching_max_publish_delay_ms: int = 10
    chunking_enabled: bool = False
    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    lazy_start_partitioned_producers: bool = False
    properties: dict[str, str] | None = None
    batching_type: BatchingType = BatchingType.Default
    encryption_key: str | None = None
    crypto_key_reader: Any = None
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    message_router: MessageRouter | None = None
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    chunk_max_message_size: int = -1
    auto_update_partitions: bool = True
    auto_update_partitions_interval_seconds: int = 60

    @classmethod
    def from_arguments(cls, **arguments: Any) -> ProducerOptions:
        """Check the arguments of a call of `create_producer`.

        Raises ValueError for a wrong type or value, OperationNotSupported for what is not there yet.
        """
        options = cls(**arguments)
        _check(options)
        refuse_not_yet("create_producer", vars(options))
        if options.message_router is not None:
            options = replace(options, message_routing_mode=PartitionsRoutingMode.CustomPartition)
        return replace(options, producer_name=options.producer_name or None)

    @property
    def first_sequence_id(self) -> int:
        """The id of the first message that is sent without one; `initial_sequence_id` counts as already
        used.
        """
        return 0 if self.initial_sequence_id is None else self.initial_sequence_id + 1


def _check(options: ProducerOptions) -> None:
    check_type("topic", options.topic, str, "a str")
    check_optional_text("producer_name", options.producer_name)
    check_type("schema", options.schema, Schema, "a Schema")
    check_optional_number("initial_sequence_id", options.initial_sequence_id, -1, 2**63 - 2)
    check_enum("compression_type", options.compression_type, CompressionType)
    check_flag("lazy_start_partitioned_producers", options.lazy_start_partitioned_producers)
    check_metadata("properties", options.properties)
    check_optional_text("encryption_key", options.encryption_key)
    check_enum("access_mode", options.access_mode, ProducerAccessMode)
    _check_queue(options)
    _check_batching(options)
    _check_routing(options)


def _check_queue(options: ProducerOptions) -> None:
    check_number("send_timeout_millis", options.send_timeout_millis, 0, MAX_INT)
    check_number("max_pending_messages", options.max_pending_messages, 0)
    check_number("max_pending_messages_across_partitions", options.max_pending_messages_across_partitions, 0)
    check_flag("block_if_queue_full", options.block_if_queue_full)


def _check_batching(options: ProducerOptions) -> None:
    check_flag("batching_enabled", options.batching_enabled)
    # Checked with batching off as well, as in the official client.
    check_number("batching_max_messages", options.batching_max_messages, 2)
    check_number("batching_max_allowed_size_in_bytes", options.batching_max_allowed_size_in_bytes, 1)
    check_number("batching_max_publish_delay_ms", options.batching_max_publish_delay_ms, 0)
    check_enum("batching_type", options.batching_type, BatchingType)
    check_flag("chunking_enabled", options.chunking_enabled)
    check_number("chunk_max_message_size", options.chunk_max_message_size, -1)
    if options.chunk_max_message_size == 0:
        raise refuse("chunk_max_message_size", 0, "at least 1, or -1 for max_message_size")
    if options.batching_enabled and options.chunking_enabled:
        raise ValueError(
            "batching_enabled and chunking_enabled cannot both be True: batches are never cut up"
        )


def _check_routing(options: ProducerOptions) -> None:
    check_enum("message_routing_mode", options.message_routing_mode, PartitionsRoutingMode)
    check_enum("hashing_scheme", options.hashing_scheme, HashingScheme)
    check_partition_updates(options.auto_update_partitions, options.auto_update_partitions_interval_seconds)
    check_callable("message_router", options.message_router, "a function (Message, int) -> int")
    is_custom = options.message_routing_mode == PartitionsRoutingMode.CustomPartition
    if is_custom and options.message_router is None:
        raise ValueError("message_routing_mode=CustomPartition needs a message_router")
