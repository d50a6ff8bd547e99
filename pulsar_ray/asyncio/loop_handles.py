"""The synchronous client's classes with carriers and timers on a loop, for asyncio.

Calls that may block are made in a thread; the methods here are called on the loop and never block.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.listeners import ListenerRunner
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.endpoint.lazy_handle import SharedClients
from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.message_fields import MessageFields, message_fields
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.producer.send_queue import SendQueue
from pulsar_ray.client.received.message import Message
from pulsar_ray.transport.cluster import Cluster


class LoopClient(Client):
    """A client whose links live on a loop from `live_on` on.

    That comes before the first of them is made.
    """

    @classmethod
    def of_cluster(cls, cluster: Cluster, **arguments: Any) -> LoopClient:
        """A client of a cluster that is there already (`pulsar_ray.testing`)."""
        client = cls._on(cluster, **arguments)
        assert isinstance(client, LoopClient)
        return client

    def live_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """All links are made for this loop."""
        self._links.loop = loop

    @property
    def options(self) -> ClientOptions:
        return self._options

    @property
    def address(self) -> str:
        """The address that finds the same cluster from another process."""
        return self._connection.address

    def producer_from(self, options: ProducerOptions, producer: Producer | None = None) -> Producer:
        """See Client; in a thread."""
        return super().producer_from(options, producer or LoopProducer.__new__(LoopProducer))

    def consumer_from(self, options: ConsumerOptions, consumer: Consumer | None = None) -> Consumer:
        """See Client; in a thread."""
        _load_conversion()
        return super().consumer_from(options, consumer)

    def reader_from(self, arguments: dict[str, Any], reader: Reader | None = None) -> Reader:
        """See Client; in a thread."""
        _load_conversion()
        return super().reader_from(arguments, reader)


def _load_conversion() -> None:
    """Make pyarrow load pandas now, if it is there.

    The first conversion to Python objects does it otherwise, for half a second.
    """
    pa.array([b""]).to_pylist()


class LoopProducer(Producer):
    """`Producer` without what blocks."""

    @property
    def options(self) -> ProducerOptions:
        """The options it was opened with."""
        return self._options

    @property
    def queues(self) -> list[SendQueue]:
        """The queues of the partitions that it has now."""
        return [partition.queue for partition in self._partitions]

    def prepare(
        self,
        content: Any,
        properties: Any,
        partition_key: Any,
        ordering_key: Any,
        sequence_id: Any,
        replication_clusters: Any,
        disable_replication: Any,
        event_timestamp: Any,
        deliver_at: Any,
        deliver_after: Any,
    ) -> tuple[SendQueue | None, bytes | None, MessageFields | None]:
        """The arguments of `SendQueue.enqueue`, and the queue.

        None for the queue of the partition whose turn it is.

        Raises what `Producer.send` raises for wrong arguments.
        """
        if self._fields_of is not None and content is not None:
            partition_key, event_timestamp = self._fields_of(content, partition_key, event_timestamp)
        fields = None
        # Most messages are nothing but a value: nine looks cost a third of a comparison of tuples.
        if (
            partition_key is not None
            or properties is not None
            or ordering_key is not None
            or sequence_id is not None
            or replication_clusters is not None
            or disable_replication is not False
            or event_timestamp is not None
            or deliver_at is not None
            or deliver_after is not None
        ):
            fields = message_fields(
                properties,
                partition_key,
                ordering_key,
                sequence_id,
                replication_clusters,
                disable_replication,
                event_timestamp,
                deliver_at,
                deliver_after,
            )
        value = None if content is None else self._schema.encode(content)
        partition = self._single or self._choose(
            value, partition_key, ordering_key, properties, event_timestamp
        )
        return None if partition is None else partition.queue, value, fields

    @property
    def next_in_turn(self) -> SendQueue:
        """The queue of the partition whose turn it is, if messages go by turns."""
        assert self._turns is not None
        return self._partitions[self._turns.current].queue


class LoopConsumer(Consumer):
    """`Consumer` whose acknowledging calls do not wait.

    `take_added` returns the partitions whose acknowledgments are to be confirmed.
    """

    _waits_for_receipts = False

    def _listen_to_activity(self, listener: ConsumerEventListener) -> None:
        """Left to `tell_activity_by`, on the loop."""

    def tell_activity_by(self, teller: ListenerRunner) -> None:
        """Use this notifier of active consumers.

        It is stopped when the consumer closes.
        """
        self._activity = teller
        teller.start()

    def take_added(self) -> list[PartitionConsumer]:
        """Partitions with acknowledgments that have to be confirmed and were not sent yet."""
        return self._acks.take_unconfirmed()


class LoopReader(Reader):
    """`Reader` whose messages are received elsewhere."""

    def read(self, message: Message) -> None:
        """A message was handed out."""
        self._consumer.acknowledge(message)

    @property
    def core(self) -> ConsumerCore:
        return self._consumer.core


_lock = threading.Lock()
_shared: dict[asyncio.AbstractEventLoop, SharedClients[LoopClient]] = {}


def shared_client(options: ClientOptions, address: str, loop: asyncio.AbstractEventLoop) -> LoopClient:
    """The shared client of this loop, made by the first call.

    All handles of the same cluster that were unpickled in this process use it.
    """

    def connect() -> LoopClient:
        client = LoopClient(address, **options.for_another_process())
        client.live_on(loop)
        return client

    with _lock:
        for known in list(_shared):
            if known.is_closed():
                _shared.pop(known)
        shared = _shared.setdefault(loop, SharedClients())
    return shared.find(options, address, connect)
