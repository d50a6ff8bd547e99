"""The client: producers, consumers and readers of one process on one cluster."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from pulsar_ray.actors.connect import Connected, connect
from pulsar_ray.client.authentication import Authentication
from pulsar_ray.client.client_options import ClientOptions, Logger
from pulsar_ray.client.consumer import Consumer, seek_target, skipped_rows
from pulsar_ray.client.consumer_core import ConsumerCore
from pulsar_ray.client.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.forking import watch
from pulsar_ray.client.not_yet import table_view_not_yet
from pulsar_ray.client.partition_consumer import PartitionConsumer
from pulsar_ray.client.partition_producer import PartitionProducer
from pulsar_ray.client.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerEventListener,
    ConsumerKeySharedPolicy,
    RedeliveryBackoff,
)
from pulsar_ray.client.producer import Producer
from pulsar_ray.client.producer_options import ProducerOptions
from pulsar_ray.client.reader import Reader
from pulsar_ray.client.routing import MessageRouter
from pulsar_ray.client.schema import BytesSchema, Schema
from pulsar_ray.client.segment_files import SegmentFiles
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    InvalidConfiguration,
    PulsarException,
    SubscriptionNotFound,
)
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
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import Cluster, PartitionRoute, SubscriptionRequest
from pulsar_ray.transport.link import ActorLink

_ENDPOINT_IDS = itertools.count(1)
Skip = tuple[int, int, int] | None


class Client:
    """Connects this process to a broker.

    `service_url` is "auto" (the Ray cluster of this process, else one running here, whose broker is started
    if none runs, else the embedded one of `data_dir`), "local" (always embedded) or the `host:port` of a Ray
    cluster. Further keywords are broker settings, used when this client is the one that starts the broker.
    Thread-safe; after a fork the child makes its own. Pickled into Ray tasks and actors it connects there
    anew.
    """

    def __init__(
        self,
        service_url: str = "auto",
        authentication: Authentication | None = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: Logger | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        config_file: str | os.PathLike[str] | None = None,
        transport: str = "auto",
        **settings: Any,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self._options = ClientOptions.from_arguments(**arguments)
        self.operation_timeout_s = float(operation_timeout_seconds)
        self._id = secrets.token_hex(8)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._links: dict[str, ActorLink] = {}
        self._open: list[Producer | Consumer | Reader] = []
        self._files = SegmentFiles()
        self._closed = False
        self._connected_lock = threading.Lock()
        self._connected: Connected | None = None
        watch(self)

    @classmethod
    def _on(cls, cluster: Cluster, **arguments: Any) -> Client:
        """A client of a cluster that is there already (`pulsar_ray.testing`); it finds no other one."""
        client = cls(**arguments)
        client._connected = Connected(cluster, client._options.service_url)
        return client

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and of this process."""
        return not self._closed and self._pid == os.getpid()

    def forked(self, _error: ForkedClient) -> None:
        """In a forked child (see `forking`): `cluster` refuses by itself."""
        self._lock = threading.Lock()
        self._connected_lock = threading.Lock()
        for link in self._links.values():
            link.forked()

    @property
    def cluster(self) -> Any:
        """The cluster this client talks to; connects at the first use. Raises AlreadyClosed, ForkedClient."""
        if self._closed:
            raise AlreadyClosed("the client is closed")
        if os.getpid() != self._pid:
            raise ForkedClient("this Client belongs to the parent process: make a new Client after the fork")
        with self._connected_lock:
            if self._connected is None:
                options = self._options
                self._connected = connect(
                    options.service_url,
                    data_dir=options.data_dir,
                    config_file=options.config_file,
                    settings=options.settings,
                )
            return self._connected.cluster

    # --- producers --------------------------------------------------------------------------------

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema = BytesSchema(),  # noqa: B008
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
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
    ) -> Producer:
        """A producer for a topic, which is created if it may be (`allow_auto_topic_creation`).

        Raises ValueError for wrong arguments, InvalidTopicName, TopicNotFound, ProducerBusy for a
        `producer_name` in use, OperationNotSupported for what is not there yet.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        return self.producer_from(ProducerOptions.from_arguments(**arguments))

    def producer_from(self, options: ProducerOptions, producer: Producer | None = None) -> Producer:
        """A producer with checked options; `producer` is one that was unpickled and is opened now."""
        name = TopicName.parse(options.topic)
        deadline = self._deadline()
        routes = self._resolve(name, deadline)
        partitions: list[PartitionProducer] = []
        try:
            for route in routes:
                link = self._partition_link(route)
                partition = PartitionProducer(link, next(_ENDPOINT_IDS), route, options)
                partition.open(deadline)
                partitions.append(partition)
        except BaseException:
            for opened in partitions:
                opened.close(time.monotonic() + self.operation_timeout_s)
            raise
        producer = Producer.__new__(Producer) if producer is None else producer
        Producer.__init__(producer, self, name.full, options, partitions)
        self._remember(producer)
        return producer

    # --- consumers --------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema = BytesSchema(),  # noqa: B008
        message_listener: Callable[[Consumer, Any], Any] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
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
    ) -> Consumer:
        """A consumer on a subscription, which is created if it does not exist.

        When this returns, everything published from now on (or stored, with InitialPosition.Earliest) is kept
        for the subscription. Raises ConsumerBusy, TopicNotFound, SubscriptionNotFound, ValueError and
        InvalidConfiguration for wrong arguments, OperationNotSupported for what is not there yet.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        return self.consumer_from(ConsumerOptions.from_arguments(**arguments))

    def consumer_from(self, options: ConsumerOptions, consumer: Consumer | None = None) -> Consumer:
        """A consumer with checked options; `consumer` is one that was unpickled and is opened now."""
        topic, core = self._open_core(options, options.subscription_name, None)
        consumer = Consumer.__new__(Consumer) if consumer is None else consumer
        Consumer.__init__(consumer, self, topic, core)
        self._remember(consumer)
        return consumer

    def _open_core(
        self, options: ConsumerOptions, subscription: str, start: dict[str, Any] | None, skip: Skip = None
    ) -> tuple[str, ConsumerCore]:
        assert isinstance(options.topic, str)
        name = TopicName.parse(options.topic)
        deadline = self._deadline()
        routes = self._resolve(name, deadline)
        if options.receiver_queue_size == 0 and len(routes) > 1:
            raise InvalidConfiguration(
                "receiver_queue_size=0 needs a topic without partitions: give at least 1"
            )
        core = ConsumerCore(options, options.consumer_name or secrets.token_hex(5), subscription, self._files)
        # All dispatchers start at once, then partitions are attached in index order.
        links = [self._dispatcher_link(route, options, subscription, deadline) for route in routes]
        for route, link in zip(routes, links, strict=True):
            partition = PartitionConsumer(core, link, next(_ENDPOINT_IDS), route)
            if start is not None:
                partition.start, partition.skip = start, skip
            core.partitions.append(partition)
        opened: list[PartitionConsumer] = []
        try:
            for partition in core.partitions:
                self._open_partition(partition, options, subscription, deadline)
                opened.append(partition)
        except BaseException:
            for partition in opened:
                partition.close(time.monotonic() + self.operation_timeout_s)
            raise
        return name.full, core

    def _open_partition(
        self, partition: PartitionConsumer, options: ConsumerOptions, subscription: str, deadline: float
    ) -> None:
        try:
            partition.open(deadline)
        except SubscriptionNotFound:
            # A dispatcher that died before it had registered its subscription cannot know whether that was
            # removed meanwhile: it must not create it, another one does.
            self.cluster.dispatcher_gone(partition.link.address)
            self._dispatcher_link(partition.route, options, subscription, deadline)
            partition.open(deadline)

    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema = BytesSchema(),  # noqa: B008
        reader_listener: Callable[[Consumer, Any], Any] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: Any = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """A reader that starts behind a message id (at it with `start_message_id_inclusive`), or at earliest
        or latest.
        """
        return self.reader_from({name: value for name, value in locals().items() if name != "self"})

    def reader_from(self, arguments: dict[str, Any], reader: Reader | None = None) -> Reader:
        """A reader with the arguments of `create_reader`; `reader` is one that was unpickled and is opened
        now.
        """
        options = ReaderOptions.from_arguments(**arguments)
        prefix = f"{options.subscription_role_prefix}-" if options.subscription_role_prefix else ""
        subscription = f"{prefix}reader-{secrets.token_hex(5)}"
        place = (options.start_message_id, options.start_message_id_inclusive)
        topic, core = self._open_core(
            options.consumer_options(subscription), subscription, seek_target(*place), skipped_rows(*place)
        )
        reader = Reader.__new__(Reader) if reader is None else reader
        Reader.__init__(reader, self, Consumer(self, topic, core), core, arguments)
        self._remember(reader)
        return reader

    def create_table_view(
        self,
        topic: str,
        subscription_name: str | None = None,
        schema: Schema = BytesSchema(),  # noqa: B008
    ) -> Any:
        """Not there yet: raises OperationNotSupported."""
        raise table_view_not_yet()

    def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of the topic's partitions; its own name if it has none."""
        name = TopicName.parse(topic)
        return [route.topic for route in self._resolve(name, time.monotonic() + self.operation_timeout_s)]

    def forget_dispatchers(self, links: list[ActorLink]) -> None:
        """A subscription was deleted: its dispatchers leave, and their names are free when this returns."""
        with self._lock:
            gone = [address for address, link in self._links.items() if link in links]
            for address in gone:
                self._links.pop(address).close()
        for address in gone:
            self.cluster.dispatcher_gone(address)

    # --- links ------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        # Connecting may start a Ray and a broker, which has deadlines of its own.
        _ = self.cluster
        return time.monotonic() + self.operation_timeout_s

    def _resolve(self, name: TopicName, deadline: float) -> list[PartitionRoute]:
        left = max(0.1, deadline - time.monotonic())
        routes: list[PartitionRoute] = self.cluster.resolve(name.full, create=True, timeout_s=left)
        return routes

    def _partition_link(self, route: PartitionRoute) -> ActorLink:
        def find() -> str:
            self.cluster.resolve(route.topic, create=False, timeout_s=5.0)
            return route.address

        return self._link(route.address, find, pushes=False)

    def _dispatcher_link(
        self, route: PartitionRoute, options: ConsumerOptions, subscription: str, deadline: float
    ) -> ActorLink:
        durable = options.subscription_mode == SubscriptionMode.Durable
        initial = "earliest" if options.initial_position == InitialPosition.Earliest else "latest"
        request = SubscriptionRequest(
            route.topic, subscription, durable, initial, options.subscription_properties or {}, create=True
        )
        again = SubscriptionRequest(route.topic, subscription, durable, initial, {}, create=False)
        address: str = self.cluster.dispatcher(request, max(0.1, deadline - time.monotonic()))

        def find() -> str:
            found: str = self.cluster.dispatcher(again, 5.0)
            return found

        return self._link(address, find, pushes=True)

    def _link(self, address: str, find: Callable[[], str], *, pushes: bool) -> ActorLink:
        with self._lock:
            link = self._links.get(address)
            if link is None or link.is_closed:
                link = ActorLink(
                    self.cluster, address, find, self._id, self._options.transport, pushes=pushes
                )
                self._links[address] = link
            return link

    # --- ending -----------------------------------------------------------------------------------

    def _remember(self, opened: Producer | Consumer | Reader) -> None:
        with self._lock:
            self._open.append(opened)

    def forget(self, closed: Producer | Consumer | Reader) -> None:
        """A producer, consumer or reader closed itself."""
        with self._lock:
            if closed in self._open:
                self._open.remove(closed)

    def close(self) -> None:
        """Close all producers, consumers and readers, then the connection.

        A second call raises AlreadyClosed.
        """
        if self._closed:
            raise AlreadyClosed("the client is closed already")
        first_error: PulsarException | None = None
        for opened in list(self._open):
            try:
                opened.close()
            except AlreadyClosed:
                continue
            except PulsarException as error:
                first_error = first_error or error
        self._end()
        if first_error is not None:
            raise first_error

    def shutdown(self) -> None:
        """End at once: pending messages fail, nothing is waited for."""
        for opened in list(self._open):
            opened.shut_down()
        self._end()

    def _end(self) -> None:
        self._closed = True
        with self._lock:
            links, self._links = self._links, {}
            self._open.clear()
        for link in links.values():
            link.close()
        self._files.close()
        with self._connected_lock:
            connected, self._connected = self._connected, None
        if connected is not None:
            connected.release()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._closed:
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        address = self._connected.address if self._connected is not None else self._options.service_url
        return _reconnect, (self._options, address)


def _reconnect(options: ClientOptions, address: str) -> Client:
    """One client per process for all handles that were pickled from the same one."""
    key = (address, str(options.data_dir), options.transport)
    with _UNPICKLED_LOCK:
        client = _UNPICKLED.get(key)
        if client is None or not client.is_usable:
            client = Client(
                address,
                operation_timeout_seconds=options.operation_timeout_seconds,
                data_dir=options.data_dir,
                config_file=options.config_file,
                transport=options.transport,
                **options.settings,
            )
            _UNPICKLED[key] = client
        return client


_UNPICKLED: dict[tuple[str, str, str], Client] = {}
_UNPICKLED_LOCK = threading.Lock()
