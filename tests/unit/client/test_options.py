from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.admin import Admin
from pulsar_ray.asyncio import Client as AsyncClient
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.options.loggers import ConsoleLogger, FileLogger
from pulsar_ray.client.options.policies import ConsumerBatchReceivePolicy, MultiplierRedeliveryBackoff
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.errors import InvalidConfiguration, OperationNotSupported
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    ConsumerType,
    HashingScheme,
    LoggerLevel,
    PartitionsRoutingMode,
    SubscriptionMode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName


def shown(value: object) -> str:
    """The same in every process that collects these tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def producer(**arguments: Any) -> ProducerOptions:
    return ProducerOptions.from_arguments(**{"topic": "t", **arguments})


def consumer(**arguments: Any) -> ConsumerOptions:
    return ConsumerOptions.from_arguments(**{"topic": "t", "subscription_name": "s", **arguments})


def reader(**arguments: Any) -> ReaderOptions:
    return ReaderOptions.from_arguments(**{"topic": "t", "start_message_id": MessageId.latest, **arguments})


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": None},
        {"topic": ["a"]},
        {"producer_name": 5},
        {"schema": None},
        {"initial_sequence_id": "1"},
        {"initial_sequence_id": -2},
        {"send_timeout_millis": -1},
        {"send_timeout_millis": 1.5},
        {"compression_type": None},
        {"compression_type": 1},
        {"max_pending_messages": -1},
        {"max_pending_messages_across_partitions": "many"},
        {"block_if_queue_full": 1},
        {"batching_enabled": None},
        {"batching_max_messages": 1},
        {"batching_max_messages": 0, "batching_enabled": False},
        {"batching_max_allowed_size_in_bytes": 0},
        {"batching_max_publish_delay_ms": -1},
        {"chunking_enabled": True, "batching_enabled": True},
        {"chunk_max_message_size": 0},
        {"message_routing_mode": "RoundRobin"},
        {"message_routing_mode": PartitionsRoutingMode.CustomPartition},
        {"message_router": 3},
        {"lazy_start_partitioned_producers": "no"},
        {"properties": {"a": 1}},
        {"properties": [("a", "b")]},
        {"batching_type": ConsumerType.Shared},
        {"access_mode": 0},
        {"hashing_scheme": None},
        {"encryption_key": 5},
        {"auto_update_partitions": None},
        {"auto_update_partitions_interval_seconds": 0},
        {"auto_update_partitions_interval_seconds": 0.5},
    ],
    ids=shown,
)
def test_create_producer_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        producer(**wrong)
    assert any(name in str(caught.value) for name in wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"max_pending_messages": 0},
        {"send_timeout_millis": 0},
        {"batching_enabled": True, "batching_max_messages": 2, "batching_type": BatchingType.KeyBased},
        {"compression_type": CompressionType.ZSTD},
        {"hashing_scheme": HashingScheme.Murmur3_32Hash},
        {"properties": {"a": "b"}},
        {"initial_sequence_id": -1},
        {"message_routing_mode": PartitionsRoutingMode.UseSinglePartition},
    ],
    ids=shown,
)
def test_create_producer_accepts(right: dict[str, Any]) -> None:
    options = producer(**right)
    assert {name: getattr(options, name) for name in right} == right


def test_an_unknown_parameter_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="batching_enable"):
        producer(batching_enable=True)


def test_a_router_implies_custom_partition() -> None:
    options = producer(message_router=lambda message, count: 0)
    assert options.message_routing_mode is PartitionsRoutingMode.CustomPartition


def test_first_sequence_id_follows_the_initial_one_also_zero() -> None:
    assert producer().first_sequence_id() == 0
    assert producer().first_sequence_id(7) == 8
    assert producer(initial_sequence_id=0).first_sequence_id(7) == 1
    assert producer(initial_sequence_id=41).first_sequence_id() == 42


def test_empty_names_are_no_names() -> None:
    assert producer(producer_name="").producer_name is None
    assert consumer(consumer_name="").consumer_name is None
    assert reader(reader_name="", subscription_role_prefix="").reader_name is None


def test_options_can_be_pickled() -> None:
    options = consumer(negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(1000, 60_000, 2))
    copy = pickle.loads(pickle.dumps(options))
    assert copy.negative_ack_redelivery_backoff.next(3) == 8000
    assert pickle.loads(pickle.dumps(producer(producer_name="p"))).producer_name == "p"


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": None},
        {"topic": ["a", 5]},
        {"subscription_name": None},
        {"consumer_type": None},
        {"consumer_type": 1},
        {"schema": str},
        {"message_listener": "print"},
        {"receiver_queue_size": -1},
        {"receiver_queue_size": "1"},
        {"max_total_receiver_queue_size_across_partitions": None},
        {"consumer_name": 1},
        {"unacked_messages_timeout_ms": 999},
        {"unacked_messages_timeout_ms": -5},
        {"unacked_messages_timeout_ms": "10"},
        {"broker_consumer_stats_cache_time_ms": None},
        {"negative_ack_redelivery_delay_ms": -1},
        {"negative_ack_redelivery_delay_ms": 1.0},
        {"is_read_compacted": None},
        {"properties": {1: "a"}},
        {"pattern_auto_discovery_period": "60"},
        {"initial_position": "Earliest"},
        {"replicate_subscription_state_enabled": 1},
        {"max_pending_chunked_message": -1},
        {"auto_ack_oldest_chunked_message_on_queue_full": None},
        {"start_message_id_inclusive": "yes"},
        {"batch_receive_policy": (1, 2, 3)},
        {"key_shared_policy": "AutoSplit"},
        {"batch_index_ack_enabled": None},
        {"regex_subscription_mode": 0},
        {"dead_letter_policy": 5},
        {"crypto_failure_action": None},
        {"subscription_mode": 0},
        {"priority_level": -1},
        {"negative_ack_redelivery_backoff": 1000},
        {"ack_timeout_tick_time_ms": 99},
        {"ack_timeout_tick_time_ms": 2001, "unacked_messages_timeout_ms": 2000},
        {"ack_timeout_redelivery_backoff": object()},
        {"enable_retry": None},
        {"ack_receipt_enabled": 1},
        {"ack_grouping_time_ms": -1},
        {"ack_grouping_max_size": 0},
        {"expire_time_of_incomplete_chunked_message_ms": -1},
        {"consumer_event_listener": print},
        {"subscription_properties": {"a": None}},
        {"start_paused": None},
        {"auto_update_partitions": None},
        {"auto_update_partitions_interval_seconds": 0},
        {"auto_update_partitions_interval_seconds": 0.5},
    ],
    ids=shown,
)
def test_subscribe_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:
        consumer(**wrong)
    assert any(name in str(caught.value) for name in wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"consumer_type": ConsumerType.Shared, "priority_level": 3},
        {"receiver_queue_size": 0},
        {"unacked_messages_timeout_ms": 0},
        {"message_listener": print, "start_paused": True},
        {"batch_receive_policy": ConsumerBatchReceivePolicy(10, -1, -1)},
        {"batch_index_ack_enabled": True, "ack_receipt_enabled": True},
        {"ack_grouping_time_ms": 0, "ack_grouping_max_size": 1},
        {"ack_timeout_tick_time_ms": 5000},
        {"subscription_properties": {"a": "b"}},
        {"replicate_subscription_state_enabled": True},
    ],
    ids=shown,
)
def test_subscribe_accepts(right: dict[str, Any]) -> None:
    options = consumer(**right)
    assert {name: getattr(options, name) for name in right} == right


def test_an_empty_subscription_name_is_an_invalid_configuration() -> None:
    with pytest.raises(InvalidConfiguration, match="subscription_name"):
        consumer(subscription_name="")


def test_start_paused_without_a_listener_is_an_invalid_configuration() -> None:
    with pytest.raises(InvalidConfiguration, match="message_listener"):
        consumer(start_paused=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"consumer_type": ConsumerType.Shared},
        {"consumer_type": ConsumerType.KeyShared},
        {"topic": "non-persistent://public/default/t"},
        {"topic": ["t", "non-persistent://public/default/t"]},
    ],
    ids=shown,
)
def test_compacted_reading_needs_an_order_and_something_stored(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match="is_read_compacted"):
        consumer(is_read_compacted=True, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": None},
        {"start_message_id": None},
        {"start_message_id": (1, 2)},
        {"schema": None},
        {"reader_listener": 1},
        {"receiver_queue_size": -1},
        {"reader_name": 1},
        {"subscription_role_prefix": 1},
        {"is_read_compacted": 1},
        {"start_message_id_inclusive": None},
        {"crypto_failure_action": 1},
    ],
    ids=shown,
)
def test_create_reader_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        reader(**wrong)


@pytest.mark.parametrize(
    "other", ["u", "persistent://a/b/t", "t-partition-x", "non-persistent://public/default/t"]
)
def test_a_reader_starts_at_no_id_of_another_topic(other: str) -> None:
    def known(topic: str) -> MessageId:
        return MessageId.deserialize(MessageId(0, 1, 2).serialize(), topic=TopicName.parse(topic).full)

    with pytest.raises(OperationNotSupported, match="belongs to"):
        reader(topic="t", start_message_id=known(other))
    for own in ("t", "persistent://public/default/t", "t-partition-0"):
        reader(topic="t", start_message_id=known(own))


def test_a_reader_is_a_non_durable_exclusive_consumer() -> None:
    options = reader(receiver_queue_size=7, start_message_id_inclusive=True, reader_name="r")
    subscription = options.consumer_options("reader-1234")
    assert subscription.subscription_mode is SubscriptionMode.NonDurable
    assert subscription.subscription_name == "reader-1234"
    assert subscription.receiver_queue_size == 7
    assert subscription.start_message_id_inclusive
    assert subscription.consumer_name == "r"


@pytest.mark.parametrize("url", ["auto", "local", "10.0.0.1:6379", "head-node:6379", "[::1]:6379"])
def test_service_urls(url: str) -> None:
    assert ClientOptions.from_arguments(service_url=url).service_url == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ray://head:10001", "ray job submit"),
        ("pulsar://localhost:6650", "no broker at a URL"),
        ("localhost", "host:port"),
        ("localhost:0", "host:port"),
        ("localhost:65536", "host:port"),
        ("localhost:6379\n", "host:port"),
        ("", "host:port"),
        (None, "service_url"),
        (6379, "service_url"),
    ],
)
def test_other_service_urls_are_refused_with_a_remedy(url: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ClientOptions.from_arguments(service_url=url)


@pytest.mark.parametrize(
    "wrong",
    [
        {"authentication": "token"},
        {"operation_timeout_seconds": 0},
        {"operation_timeout_seconds": "30"},
        {"io_threads": 0},
        {"message_listener_threads": None},
        {"concurrent_lookup_requests": 0},
        {"log_conf_file_path": 1},
        {"stats_interval_in_seconds": -1},
        {"use_tls": None},
        {"tls_trust_certs_file_path": 1},
        {"logger": print},
        {"connection_timeout_ms": 0},
        {"listener_name": 1},
        {"data_dir": 1},
        {"config_file": b"x"},
        {"transport": "http"},
        {"transport": None},
    ],
    ids=shown,
)
def test_client_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ClientOptions.from_arguments(**wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"stats_interval_in_seconds": 0},
        {"logger": logging.getLogger("x")},
        {"logger": ConsoleLogger(LoggerLevel.Debug)},
        {"logger": FileLogger(LoggerLevel.Warn, "out.log")},
        {"data_dir": Path("here")},
        {"transport": "ray"},
        {"settings": {"max_message_size": 10}},
    ],
    ids=shown,
)
def test_client_accepts(right: dict[str, Any]) -> None:
    options = ClientOptions.from_arguments(**right)
    assert {name: getattr(options, name) for name in right} == right


@pytest.mark.parametrize("opened", [Client, AsyncClient, Admin])
def test_a_setting_that_there_is_not_is_refused_before_anything_is_connected(opened: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"'max_mesage_size' is no setting.*max_message_size"):
        opened(max_mesage_size=1)
    with pytest.raises(InvalidConfiguration, match="max_message_size is '1 MB'"):
        opened(max_message_size="1 MB")
