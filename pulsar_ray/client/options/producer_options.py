"""Declares the options of `Client.create_producer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any

from pulsar_ray.client.options.checks import MAX_SEQUENCE_ID, refuse
from pulsar_ray.client.options.crypto_key_reader import KeyReader
from pulsar_ray.client.options.declared import (
    Count,
    Flag,
    Interval,
    Metadata,
    OptionalText,
    WaitMs,
    check_each,
    function,
    instance,
    member,
    number,
    optional_number,
)
from pulsar_ray.client.options.given_schema import GivenSchema, as_schema
from pulsar_ray.client.options.not_yet import refuse_not_yet
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
)
from pulsar_ray.model.topic_name import TopicName

MessageRouter = Callable[[Message, int], int]
"""A user's router: (message, number of partitions) -> partition index."""


@dataclass(frozen=True)
class ProducerOptions:
    """The arguments of `create_producer` with their defaults.

    Those of the official client come first, in its order. `checked` checks them.
    """

    topic: Annotated[str, instance(str, "a str")]
    producer_name: OptionalText = None
    schema: GivenSchema = field(default_factory=BytesSchema)
    initial_sequence_id: Annotated[int | None, optional_number(-1, MAX_SEQUENCE_ID)] = None
    send_timeout_millis: WaitMs = 30_000
    compression_type: Annotated[CompressionType, member(CompressionType)] = CompressionType.NONE
    max_pending_messages: Count = 1000
    max_pending_messages_across_partitions: Count = 50_000
    block_if_queue_full: Flag = False
    batching_enabled: Flag = False
    # Batches are checked with batching off as well, as in the official client.
    batching_max_messages: Annotated[int, number(2)] = 1000
    batching_max_allowed_size_in_bytes: Annotated[int, number(1)] = 131_072
    batching_max_publish_delay_ms: Count = 10
    chunking_enabled: Flag = False
    message_routing_mode: Annotated[PartitionsRoutingMode, member(PartitionsRoutingMode)] = (
        PartitionsRoutingMode.RoundRobinDistribution
    )
    lazy_start_partitioned_producers: Flag = False
    properties: Metadata = None
    batching_type: Annotated[BatchingType, member(BatchingType)] = BatchingType.Default
    encryption_key: OptionalText = None
    crypto_key_reader: KeyReader = None
    access_mode: Annotated[ProducerAccessMode, member(ProducerAccessMode)] = ProducerAccessMode.Shared
    message_router: Annotated[MessageRouter | None, function("a function (Message, int) -> int")] = None
    _: KW_ONLY
    hashing_scheme: Annotated[HashingScheme, member(HashingScheme)] = HashingScheme.JavaStringHash
    chunk_max_message_size: Annotated[int, number(-1)] = -1
    auto_update_partitions: Flag = True
    auto_update_partitions_interval_seconds: Interval = 60

    @classmethod
    def from_arguments(cls, **arguments: Any) -> ProducerOptions:
        """Make and check the arguments of a call of `create_producer`."""
        return cls(**arguments).checked()

    def checked(self) -> ProducerOptions:
        """Check the arguments of a call of `create_producer`.

        Raises ValueError for a wrong type or value, OperationNotSupported for what is not there yet.
        """
        check_each(self)
        _check_together(self)
        refuse_not_yet("create_producer", vars(self))
        is_custom = self.message_router is not None
        return replace(
            self,
            producer_name=self.producer_name or None,
            schema=as_schema(self.schema),
            message_routing_mode=PartitionsRoutingMode.CustomPartition
            if is_custom
            else self.message_routing_mode,
        )

    def first_sequence_id(self, stored_id: int = -1) -> int:
        """Return the id of the first message that is sent without one.

        `stored_id` is the highest that the partition knows of this producer. `initial_sequence_id` counts as
        already used, and comes before that.
        """
        return (stored_id if self.initial_sequence_id is None else self.initial_sequence_id) + 1


def _check_together(options: ProducerOptions) -> None:
    if (options.encryption_key is None) != (options.crypto_key_reader is None):
        raise InvalidConfiguration(
            f"encryption_key={options.encryption_key!r:.200} and "
            f"crypto_key_reader={options.crypto_key_reader!r:.200} go together: a name, and the public key "
            "of that name; messages would be sent in the clear"
        )
    if options.chunk_max_message_size == 0:
        raise refuse("chunk_max_message_size", 0, "at least 1, or -1 for max_message_size")
    if options.batching_enabled and options.chunking_enabled:
        raise ValueError(
            "batching_enabled and chunking_enabled cannot both be True: batches are never cut up"
        )
    if options.chunking_enabled and not TopicName.parse(options.topic).is_persistent:
        raise ValueError(
            f"chunking_enabled=True on {options.topic}: only persistent topics take chunks; leave it out, "
            "and split large values"
        )
    is_custom = options.message_routing_mode == PartitionsRoutingMode.CustomPartition
    if is_custom and options.message_router is None:
        raise ValueError("message_routing_mode=CustomPartition needs a message_router")
