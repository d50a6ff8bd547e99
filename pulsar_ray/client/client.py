"""The client: producers, consumers and readers of one process on one cluster."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.consumer_factory import ConsumerFactory
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.consumer.start_position import StartPosition
from pulsar_ray.client.consumer.table_view import TableView, refuse_view_of_unstored
from pulsar_ray.client.endpoint.actor_links import ActorLinks, ClusterConnection
from pulsar_ray.client.endpoint.client_log import ClientLog
from pulsar_ray.client.endpoint.ending import Ending, notify_of_forks
from pulsar_ray.client.endpoint.identity import Identity
from pulsar_ray.client.endpoint.lazy_handle import SharedClients
from pulsar_ray.client.endpoint.open_handles import FORGOTTEN, OpenHandles
from pulsar_ray.client.metrics.process_metrics import ProcessMetrics
from pulsar_ray.client.options.authentication import Authentication
from pulsar_ray.client.options.checks import check_optional_text
from pulsar_ray.client.options.client_options import ClientOptions, Logger
from pulsar_ray.client.options.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.options.declared import takes
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.client.options.service_info import ServiceInfo
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.producer.producer_factory import ProducerFactory
from pulsar_ray.errors import AlreadyClosed, ConsumerBusy, ForkedClient, ProducerBusy
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.launch.connect import Connected
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import Cluster

_ENDPOINT_IDS = itertools.count(1)
LEAVE_RAY_S = 5.0
T = TypeVar("T")


class Client:
    """Connects this process to a broker.

    `service_url` is "auto" (the Ray cluster of this process, else one running here, whose broker is started
    if none runs, else the embedded one of `data_dir`), "local" (always embedded) or the `host:port` of a Ray
    cluster. With `metrics` what this process sends and receives is among Ray's metrics. Further keywords are
    broker settings, used when this client is the one that starts the broker. Thread-safe; after a fork the
    child makes its own. Pickled into Ray tasks and actors it connects there anew.
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
        metrics: bool = False,
        **settings: Any,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self._options = ClientOptions.from_arguments(**arguments)
        self.operation_timeout_s = float(operation_timeout_seconds)
        self._log = ClientLog(self._options.logger)
        self._ending = Ending("client")
        self._identity = Identity(self._options.authentication)
        self._connect_through(ClusterConnection(self._options))
        self._ending.when_forgotten(_close_later)
        IoThread.get()  # it begins what a finalizer hands on
        notify_of_forks(self)

    def __del__(self) -> None:
        connection = self.__dict__.get("_connection")
        if connection is not None and connection.is_connected:
            self._ending.forgotten(self)

    def _connect_through(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._links = links = ActorLinks(connection, self._options.transport, self.operation_timeout_s)
        self._handles = OpenHandles(self._ending, lambda: links.are_served)
        figures = ProcessMetrics.get().figures if self._options.metrics else None
        self._producers = ProducerFactory(self._links, _ENDPOINT_IDS, figures)
        self._consumers = ConsumerFactory(self._links, _ENDPOINT_IDS, figures)

    @classmethod
    def _on(cls, cluster: Cluster, **arguments: Any) -> Client:
        """A client of a given cluster (`pulsar_ray.testing`); it finds no other one."""
        client = cls(**arguments)
        options = client._options
        client._connect_through(ClusterConnection(options, Connected(cluster, options.service_url)))
        return client

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and of this process."""
        return self._connection.is_usable

    def forked(self, _error: ForkedClient) -> None:
        """Take a new lock in a forked child: `cluster` refuses by itself."""
        self._handles.forked()
        self._connection.forked()
        self._links.forked()

    @property
    def cluster(self) -> Cluster:
        """The cluster this client talks to; connects at the first use.

        Raises AlreadyClosed, ForkedClient.
        """
        return self._connection.cluster

    # --- producers --------------------------------------------------------------------------------

    @takes(ProducerOptions)
    def create_producer(self, options: ProducerOptions) -> Producer:
        """Create a producer for a topic, which is created if it may be.

        The setting for that is `allow_auto_topic_creation`. Raises ValueError for wrong arguments,
        InvalidTopicName, TopicNotFound, ProducerBusy for a `producer_name` in use, OperationNotSupported for
        what is not there yet.
        """
        return self.producer_from(options.checked())

    def producer_from(self, options: ProducerOptions, producer: Producer | None = None) -> Producer:
        """Open a producer with checked options.

        `producer` is one that was unpickled and is opened now.
        """
        self._identity.check_may_produce(self.cluster, options.topic, self.operation_timeout_s)
        topic, partitions = self._open(lambda: self._producers.open(options))
        producer = Producer.__new__(Producer) if producer is None else producer
        Producer.__init__(producer, self, topic, options, partitions)
        self._producers.follow_growth(producer, options, partitions[0].queue.cipher)
        self._handles.add(producer, topic)
        return producer

    def _open(self, open_now: Callable[[], T]) -> T:
        """Open by `open_now`, again if a place is taken while forgotten handles are being closed.

        One of them may have had it.
        """
        # Asked before, too: it may be closed just behind the refusal.
        was_busy = FORGOTTEN.is_busy
        try:
            return open_now()
        except (ConsumerBusy, ProducerBusy):
            if not (was_busy or FORGOTTEN.is_busy):
                raise
        FORGOTTEN.settle(self.operation_timeout_s)
        return open_now()

    # --- consumers --------------------------------------------------------------------------------

    @takes(ConsumerOptions)
    def subscribe(self, options: ConsumerOptions) -> Consumer:
        """Open a consumer on a subscription, which is created if it does not exist.

        When this returns, everything published from now on (or stored, with InitialPosition.Earliest) is kept
        for the subscription. Raises ConsumerBusy, TopicNotFound, SubscriptionNotFound, ValueError and
        InvalidConfiguration for wrong arguments, OperationNotSupported for what is not there yet.
        """
        return self.consumer_from(options.checked())

    def consumer_from(self, options: ConsumerOptions, consumer: Consumer | None = None) -> Consumer:
        """Open a consumer with checked options.

        `consumer` is one that was unpickled and is opened now.
        """
        subscription = options.subscription_name
        self._identity.check_may_consume(self.cluster, options, subscription, self.operation_timeout_s)
        topic, core = self._open(lambda: self._consumers.open(options, subscription))
        consumer = Consumer.__new__(Consumer) if consumer is None else consumer
        Consumer.__init__(consumer, self, topic, core)
        listens = options.message_listener is not None or options.consumer_event_listener is not None
        self._handles.add(consumer, topic, stays=listens)
        consumer.start_listening()
        return consumer

    @takes(ReaderOptions)
    def create_reader(self, options: ReaderOptions) -> Reader:
        """Open a reader that starts behind a message id, or at earliest or latest.

        With `start_message_id_inclusive` it starts at that message. With a `reader_listener` it is called
        with the reader and each message, on a thread of its own, and `read_next` raises.
        """
        return self.reader_from(dict(vars(options)))

    def reader_from(self, arguments: dict[str, Any], reader: Reader | None = None) -> Reader:
        """Open a reader with the arguments of `create_reader`.

        `reader` is one that was unpickled and is opened now.
        """
        reader = Reader.__new__(Reader) if reader is None else reader
        consumer, _ = self._reading_consumer(arguments, reader.known_ending("reader"))
        Reader.__init__(reader, self, consumer, arguments)
        self._handles.add(reader, reader.topic(), stays=arguments.get("reader_listener") is not None)
        reader.start_listening()
        return reader

    def _reading_consumer(self, arguments: dict[str, Any], ending: Ending) -> tuple[Consumer, ConsumerCore]:
        options = ReaderOptions.from_arguments(**arguments)
        prefix = f"{options.subscription_role_prefix}-" if options.subscription_role_prefix else ""
        subscription = f"{prefix}reader-{secrets.token_hex(5)}"
        is_at_last = options.start_message_id_inclusive and options.start_message_id == MessageId.latest
        start = StartPosition.at(
            options.start_message_id, options.start_message_id_inclusive and not is_at_last
        )
        consumer_options = options.consumer_options(subscription)
        self._identity.check_may_consume(self.cluster, consumer_options, "", self.operation_timeout_s)
        topic, core = self._consumers.open(consumer_options, subscription, start)
        consumer = Consumer(self, topic, core, ending)
        if is_at_last and TopicName.parse(topic).is_persistent:
            consumer.seek_last()
        return consumer, core

    def create_table_view(
        self,
        topic: str,
        subscription_name: str | None = None,
        schema: Schema | type[Any] = BytesSchema(),  # noqa: B008
        *,
        auto_update_partitions: bool = True,
        auto_update_partitions_interval_seconds: int = 60,
    ) -> TableView:
        """Keep the latest value of each key of a topic.

        The topic is read as far as it is stored before this returns. Raises what `create_reader` raises,
        IncompatibleSchema for a schema that cannot read it, and NotAllowedError for a non-persistent
        topic.
        """
        check_optional_text("subscription_name", subscription_name)
        refuse_view_of_unstored(topic)
        arguments = {
            "topic": topic,
            "start_message_id": MessageId.earliest,
            "schema": schema,
            "is_read_compacted": True,
            "auto_update_partitions": auto_update_partitions,
            "auto_update_partitions_interval_seconds": auto_update_partitions_interval_seconds,
        }
        reading = {**arguments, "subscription_role_prefix": subscription_name}
        consumer, core = self._reading_consumer(reading, Ending("table view"))
        reader = Reader(self, consumer, arguments)
        self._handles.add(reader, reader.topic())
        view = TableView(consumer.topic(), subscription_name, core.options.schema, reader, consumer, core)
        try:
            view.load()
        except BaseException:
            reader.close()
            raise
        return view

    def get_topic_partitions(self, topic: str) -> list[str]:
        """List the full names of the topic's partitions; its own if it has none."""
        name = TopicName.parse(topic)
        return [route.topic for route in self._links.all_routes(name, self._links.deadline())]

    def keeps_nothing(self, topic: str) -> bool:
        """Whether a topic has neither a durable subscription nor retention.

        Not part of the official client.
        """
        return self._links.keeps_nothing(TopicName.parse(topic), self._links.deadline())

    def forget_dispatchers(self, links: list[ActorLink]) -> None:
        """Drop a deleted subscription's dispatchers; their names are free when this returns."""
        self._links.forget_dispatchers(links)

    # --- ending -----------------------------------------------------------------------------------

    def forget(self, closed: Producer | Consumer | Reader) -> None:
        """Forget a producer, consumer or reader that has closed itself."""
        self._handles.remove(closed)

    def get_service_info(self) -> ServiceInfo:
        """Where this client connects: the service URL it was given."""
        return ServiceInfo(self._options.service_url)

    def close(self) -> None:
        """Close all producers, consumers and readers, then the connection.

        None of its threads calls Ray any more when it returns, so that the program may call `ray.shutdown()`;
        one that does not come back from Ray is waited for 5 s. Of a partition that is away what was
        acknowledged last may come again, which is logged. A second call raises AlreadyClosed, one after
        `shutdown` does not.
        """
        self._ending.close(self._close)

    def _close(self) -> None:
        first_error = self._handles.close_all(self.operation_timeout_s)
        self._end(LEAVE_RAY_S)
        if first_error is not None:
            raise first_error

    def shutdown(self) -> None:
        """End at once: pending messages fail with AlreadyClosed, nothing is waited for.

        To the broker it is a crash: messages in hand come again, those acknowledged negatively too.
        """
        self._ending.leave()
        self._handles.shut_down_all()
        self._end()

    def _end(self, wait_s: float = 0.0) -> None:
        self._connection.close()
        self._handles.clear()
        self._links.close()
        self._consumers.close()
        self._connection.release(wait_s)
        self._log.close()

    @property
    def ending(self) -> Ending:
        """Whether and how it was closed; not part of the official client."""
        return self._ending

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AlreadyClosed):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnected, (self._options, self._connection.address)


def _close_later(client: Client) -> None:
    FORGOTTEN.take(client, Client.close)


_SHARED: SharedClients[Client] = SharedClients()


# A function of the module: Ray's pickle takes a method of a class along by value, and all that it refers to.
def _reconnected(options: ClientOptions, address: str) -> Client:
    """The client that unpickled handles share; it connects when it is first used."""
    return _SHARED.find(options, address, lambda: Client(address, **options.for_another_process()))
