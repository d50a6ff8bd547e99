"""The asyncio client: producers, consumers and readers on one event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.asyncio.consumer import Consumer
from pulsar_ray.asyncio.loop_handles import LoopClient, LoopConsumer, LoopProducer, LoopReader, shared_client
from pulsar_ray.asyncio.producer import Producer
from pulsar_ray.asyncio.reader import Reader
from pulsar_ray.client.endpoint.last_words import exit_on_sigterm
from pulsar_ray.client.options.checks import check_flag, refuse
from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerEventListener,
    ConsumerKeySharedPolicy,
    RedeliveryBackoff,
)
from pulsar_ray.client.options.producer_options import MessageRouter, ProducerOptions
from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.errors import AlreadyClosed, NotAllowedError
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.transport.cluster import Cluster


class HomeLoop:
    """The loop of the first awaited call, which `on_settled` gets."""

    def __init__(self, on_settled: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_settled = on_settled

    def running(self) -> asyncio.AbstractEventLoop:
        """The running loop. Raises AlreadyClosed if it replaced a closed one, NotAllowedError on another."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return loop
        if self._loop is None:
            self._loop = loop
            self._on_settled(loop)
            return loop
        if self._loop.is_closed():
            raise AlreadyClosed(
                "the event loop that this client lived on is closed: make a new Client on the present one"
            )
        raise NotAllowedError(
            "this client lives on another event loop, that of its first call: make a Client for each loop"
        )


class Client:
    """Connects a program's event loop to a broker; `service_url` and keywords as of `pulsar_ray.Client`.

    It lives on the loop of its first awaited call, with all it opens; another loop needs a client of its own.
    Calls that have to find or attach to actors run on threads, everything else on the loop. Used elsewhere it
    raises NotAllowedError, after the end of its loop AlreadyClosed. Pickled into Ray tasks and actors it
    connects there anew.
    """

    def __init__(self, service_url: str = "auto", **kwargs: Any) -> None:
        # Ray is joined on another thread than the main one, so it will not do that.
        exit_on_sigterm()
        self._use(LoopClient(service_url, **kwargs))

    def _use(self, client: LoopClient) -> None:
        self._inner = client
        self._home = HomeLoop(client.live_on)

    @classmethod
    def _on(cls, cluster: Cluster, **arguments: Any) -> Client:
        """A client of a cluster that is there already (`pulsar_ray.testing`); it finds no other one."""
        client = cls.__new__(cls)
        Client._use(client, LoopClient.of_cluster(cluster, **arguments))
        return client

    @classmethod
    def reconnected(cls, options: ClientOptions, address: str) -> Client:
        """Connect in another process; handles used on one loop share their connections."""
        client = cls(address, **options.for_another_process())
        client._home = HomeLoop(lambda loop: client._join(shared_client(options, address, loop)))
        return client

    def _join(self, client: LoopClient) -> None:
        self._inner = client

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, if this client lives on it. Raises NotAllowedError, AlreadyClosed."""
        return self._home.running()

    @property
    def operation_timeout_s(self) -> float:
        return self._inner.operation_timeout_s

    # --- producers --------------------------------------------------------------------------------

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 131072,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: Any = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: MessageRouter | None = None,
        *,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
        chunk_max_message_size: int = -1,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: int = 60,
    ) -> Producer:
        """A producer for a topic; errors as of `pulsar_ray.Client.create_producer`.

        Batching is on by default: a lone `await send` takes its delay of 10 ms, and hardly anything without.
        """
        arguments = _with_schema({name: value for name, value in locals().items() if name != "self"})
        options = ProducerOptions.from_arguments(**arguments)
        return Producer(self, options, await self.open_producer(options))

    async def open_producer(self, options: ProducerOptions) -> LoopProducer:
        """Open the synchronous producer that a Producer sends with."""
        self.loop()
        producer = LoopProducer.__new__(LoopProducer)
        await in_thread(self._inner.producer_from, options, producer, undo=lambda opened: opened.close())
        return producer

    # --- consumers --------------------------------------------------------------------------------

    async def subscribe(
        self,
        topic: str | list[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: Any = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
        *,
        subscription_mode: SubscriptionMode = SubscriptionMode.Durable,
        priority_level: int = 0,
        negative_ack_redelivery_backoff: RedeliveryBackoff | None = None,
        ack_timeout_tick_time_ms: int = 1000,
        ack_timeout_redelivery_backoff: RedeliveryBackoff | None = None,
        enable_retry: bool = False,
        ack_receipt_enabled: bool = False,
        ack_grouping_time_ms: int = 100,
        ack_grouping_max_size: int = 1000,
        expire_time_of_incomplete_chunked_message_ms: int = 60000,
        consumer_event_listener: ConsumerEventListener | None = None,
        subscription_properties: dict[str, str] | None = None,
        start_paused: bool = False,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: int = 60,
        pattern_auto_discovery_period: int = 60,
    ) -> Consumer:
        """A consumer on a subscription, which is created if it does not exist.

        Errors as of `pulsar_ray.Client.subscribe`.

        When this returns, everything published from now on (or stored, with InitialPosition.Earliest) is kept
        for the subscription. With `is_pattern_topic` the topic is a regular expression. With `start_paused`
        nothing is asked of the broker before `Consumer.resume`.
        """
        arguments = _with_schema({name: value for name, value in locals().items() if name != "self"})
        arguments["topic"] = _topic(topic, arguments.pop("is_pattern_topic"))
        check_flag("start_paused", start_paused)
        # The synchronous client pauses its listener, of which there is none here.
        options = ConsumerOptions.from_arguments(**{**arguments, "start_paused": False})
        options = replace(options, start_paused=start_paused)
        return Consumer(self, options, await self.open_consumer(options))

    async def open_consumer(self, options: ConsumerOptions) -> LoopConsumer:
        """Open the synchronous consumer that a Consumer receives with."""
        self.loop()
        consumer = LoopConsumer.__new__(LoopConsumer)
        await in_thread(self._inner.consumer_from, options, consumer, undo=lambda opened: opened.close())
        return consumer

    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: Any = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: int = 60,
    ) -> Reader:
        """A reader that starts behind a message id, or at earliest or latest.

        At the id with `start_message_id_inclusive`.
        """
        arguments = _with_schema({name: value for name, value in locals().items() if name != "self"})
        return Reader(self, arguments, await self.open_reader(arguments))

    async def open_reader(self, arguments: dict[str, Any]) -> LoopReader:
        """Open the synchronous reader that a Reader reads with."""
        self.loop()
        reader = LoopReader.__new__(LoopReader)
        await in_thread(self._inner.reader_from, arguments, reader, undo=lambda opened: opened.close())
        return reader

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of the topic's partitions; its own name if it has none."""
        self.loop()
        return await in_thread(self._inner.get_topic_partitions, topic)

    # --- ending -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all producers, consumers and readers, then the connection.

        A second call raises AlreadyClosed; one after `shutdown` does not.
        """
        self.loop()
        await in_thread(self._inner.close)

    def shutdown(self) -> None:
        """End at once: pending messages fail with AlreadyClosed, nothing is waited for.

        To the broker it is a crash: messages in hand come again, those acknowledged negatively too.
        """
        self._inner.shutdown()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(AlreadyClosed):
            await self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnected, (self._inner.options, self._inner.address)


# A function of the module: Ray's pickle takes a method of a class along by value, and all that it refers to.
def _reconnected(options: ClientOptions, address: str) -> Client:
    return Client.reconnected(options, address)


def _with_schema(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments["schema"] is None:
        arguments["schema"] = BytesSchema()
    return arguments


def _topic(topic: str | list[str], is_pattern: bool) -> str | list[str] | re.Pattern[str]:
    check_flag("is_pattern_topic", is_pattern)
    if not isinstance(topic, str if is_pattern else (str, list)):
        raise refuse(
            "topic", topic, "a str or list of str; with is_pattern_topic=True one regular expression"
        )
    if not is_pattern:
        return topic
    assert isinstance(topic, str)
    try:
        return re.compile(topic)
    except re.error as error:
        raise ValueError(f"topic={topic!r} is no regular expression: {error}") from None
