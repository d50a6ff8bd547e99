"""The parameters of the official client's methods as data; the options classes declare those added to them.

The public methods take theirs from the options classes (ADR 0120). Tests compare both with the official ones,
so that no official parameter can be lost, and no addition can take an official one's place.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)

REQUIRED: Final = inspect.Parameter.empty


class _DefaultSchema:
    """Stands for `BytesSchema()`, whose instances are not equal to each other."""

    def __repr__(self) -> str:
        return "BytesSchema()"


DEFAULT_SCHEMA: Final = _DefaultSchema()


def declared(options: Any) -> dict[str, Any]:
    """Each option that a class declares, with its default."""
    return {
        field.name: _default_of(field) for field in dataclasses.fields(options) if field.name != "settings"
    }


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is BytesSchema:
        return DEFAULT_SCHEMA
    return REQUIRED if field.default is dataclasses.MISSING else field.default


@dataclass(frozen=True)
class Signature:
    """A method's official parameters in order and the keyword-only additions: name -> default."""

    official: dict[str, Any]
    additions: dict[str, Any]

    @classmethod
    def of(cls, options: Any, official: dict[str, Any]) -> Signature:
        """The signature of the call whose options a class declares; all that is not official is added."""
        return cls(
            official, {name: value for name, value in declared(options).items() if name not in official}
        )

    @property
    def defaults(self) -> dict[str, Any]:
        """Every optional parameter with its default."""
        return {name: value for name, value in self.parameters.items() if value is not REQUIRED}

    @property
    def parameters(self) -> dict[str, Any]:
        return {**self.official, **self.additions}

    def differences(self, function: Callable[..., Any]) -> list[str]:
        """What a method's real signature lacks, has too much, or has with another default or place; empty
        if nothing.
        """
        found = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "self" and parameter.kind != inspect.Parameter.VAR_KEYWORD
        ]
        positional = [p.name for p in found if p.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
        keyword_only = {p.name for p in found if p.kind == inspect.Parameter.KEYWORD_ONLY}
        problems = []
        if positional != list(self.official):
            problems.append(f"official parameters {list(self.official)}, found {positional}")
        if keyword_only != set(self.additions):
            problems.append(f"keyword-only additions {sorted(self.additions)}, found {sorted(keyword_only)}")
        for parameter in found:
            expected = self.parameters.get(parameter.name, REQUIRED)
            if not _same_default(expected, parameter.default):
                problems.append(f"{parameter.name}: default {expected!r}, found {parameter.default!r}")
        return problems


def _same_default(expected: object, found: object) -> bool:
    if expected is DEFAULT_SCHEMA:
        return type(found).__name__ == "BytesSchema"
    return type(expected) is type(found) and expected == found


CLIENT = Signature.of(
    ClientOptions,
    official={
        # Official code always gives it; "auto" is ours.
        "service_url": "auto",
        "authentication": None,
        "operation_timeout_seconds": 30,
        "io_threads": 1,
        "message_listener_threads": 1,
        "concurrent_lookup_requests": 50_000,
        "log_conf_file_path": None,
        "stats_interval_in_seconds": 600,
        "use_tls": False,
        "tls_trust_certs_file_path": None,
        "tls_allow_insecure_connection": False,
        "tls_validate_hostname": False,
        "logger": None,
        "connection_timeout_ms": 10_000,
        "listener_name": None,
        "tls_private_key_file_path": None,
        "tls_certificate_file_path": None,
    },
)

CREATE_PRODUCER = Signature.of(
    ProducerOptions,
    official={
        "topic": REQUIRED,
        "producer_name": None,
        "schema": DEFAULT_SCHEMA,
        "initial_sequence_id": None,
        "send_timeout_millis": 30_000,
        "compression_type": CompressionType.NONE,
        "max_pending_messages": 1000,
        "max_pending_messages_across_partitions": 50_000,
        "block_if_queue_full": False,
        "batching_enabled": False,
        "batching_max_messages": 1000,
        "batching_max_allowed_size_in_bytes": 131_072,
        "batching_max_publish_delay_ms": 10,
        "chunking_enabled": False,
        "message_routing_mode": PartitionsRoutingMode.RoundRobinDistribution,
        "lazy_start_partitioned_producers": False,
        "properties": None,
        "batching_type": BatchingType.Default,
        "encryption_key": None,
        "crypto_key_reader": None,
        "access_mode": ProducerAccessMode.Shared,
        "message_router": None,
    },
)

SUBSCRIBE = Signature.of(
    ConsumerOptions,
    official={
        "topic": REQUIRED,
        "subscription_name": REQUIRED,
        "consumer_type": ConsumerType.Exclusive,
        "schema": DEFAULT_SCHEMA,
        "message_listener": None,
        "receiver_queue_size": 1000,
        "max_total_receiver_queue_size_across_partitions": 50_000,
        "consumer_name": None,
        "unacked_messages_timeout_ms": None,
        "broker_consumer_stats_cache_time_ms": 30_000,
        "negative_ack_redelivery_delay_ms": 60_000,
        "is_read_compacted": False,
        "properties": None,
        "pattern_auto_discovery_period": 60,
        "initial_position": InitialPosition.Latest,
        "crypto_key_reader": None,
        "replicate_subscription_state_enabled": False,
        "max_pending_chunked_message": 10,
        "auto_ack_oldest_chunked_message_on_queue_full": False,
        "start_message_id_inclusive": False,
        "batch_receive_policy": None,
        "key_shared_policy": None,
        "batch_index_ack_enabled": False,
        "regex_subscription_mode": RegexSubscriptionMode.PersistentOnly,
        "dead_letter_policy": None,
        "crypto_failure_action": ConsumerCryptoFailureAction.FAIL,
    },
)

CREATE_READER = Signature.of(
    ReaderOptions,
    official={
        "topic": REQUIRED,
        "start_message_id": REQUIRED,
        "schema": DEFAULT_SCHEMA,
        "reader_listener": None,
        "receiver_queue_size": 1000,
        "reader_name": None,
        "subscription_role_prefix": None,
        "is_read_compacted": False,
        "crypto_key_reader": None,
        "start_message_id_inclusive": False,
        "crypto_failure_action": ConsumerCryptoFailureAction.FAIL,
    },
)

_SEND_OPTIONS: Final[dict[str, Any]] = {
    "properties": None,
    "partition_key": None,
    "ordering_key": None,
    "sequence_id": None,
    "replication_clusters": None,
    "disable_replication": False,
    "event_timestamp": None,
    "deliver_at": None,
    "deliver_after": None,
}

SEND = Signature(official={"content": REQUIRED, **_SEND_OPTIONS}, additions={})
SEND_ASYNC = Signature(official={"content": REQUIRED, "callback": REQUIRED, **_SEND_OPTIONS}, additions={})
CREATE_TABLE_VIEW = Signature(
    official={"topic": REQUIRED, "subscription_name": None, "schema": DEFAULT_SCHEMA},
    additions={
        name: CREATE_READER.additions[name]
        for name in ("auto_update_partitions", "auto_update_partitions_interval_seconds")
    },
)
