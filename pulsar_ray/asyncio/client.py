"""The asyncio client: producers, consumers and readers on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from pulsar_ray.asyncio.arguments import ProducerArguments, ReaderArguments, SubscribeArguments
from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.asyncio.consumer import Consumer
from pulsar_ray.asyncio.loop_handles import LoopClient, LoopConsumer, LoopProducer, LoopReader, shared_client
from pulsar_ray.asyncio.producer import Producer
from pulsar_ray.asyncio.reader import Reader
from pulsar_ray.client.endpoint.last_words import exit_on_sigterm
from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.declared import takes
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.errors import AlreadyClosed, NotAllowedError
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

    @takes(ProducerArguments)
    async def create_producer(self, options: ProducerArguments) -> Producer:
        """A producer for a topic; errors as of `pulsar_ray.Client.create_producer`.

        Batching is on by default: a lone `await send` takes its delay of 10 ms, and hardly anything without.
        """
        producer_options = options.for_sync_client()
        return Producer(self, producer_options, await self.open_producer(producer_options))

    async def open_producer(self, options: ProducerOptions) -> LoopProducer:
        """Open the synchronous producer that a Producer sends with."""
        self.loop()
        producer = LoopProducer.__new__(LoopProducer)
        await in_thread(self._inner.producer_from, options, producer, undo=lambda opened: opened.close())
        return producer

    # --- consumers --------------------------------------------------------------------------------

    @takes(SubscribeArguments)
    async def subscribe(self, options: SubscribeArguments) -> Consumer:
        """A consumer on a subscription, which is created if it does not exist.

        Errors as of `pulsar_ray.Client.subscribe`.

        When this returns, everything published from now on (or stored, with InitialPosition.Earliest) is kept
        for the subscription. With `is_pattern_topic` the topic is a regular expression. With `start_paused`
        nothing is asked of the broker before `Consumer.resume`.
        """
        consumer_options = options.for_sync_client()
        return Consumer(self, consumer_options, await self.open_consumer(consumer_options))

    async def open_consumer(self, options: ConsumerOptions) -> LoopConsumer:
        """Open the synchronous consumer that a Consumer receives with."""
        self.loop()
        consumer = LoopConsumer.__new__(LoopConsumer)
        await in_thread(self._inner.consumer_from, options, consumer, undo=lambda opened: opened.close())
        return consumer

    @takes(ReaderArguments)
    async def create_reader(self, options: ReaderArguments) -> Reader:
        """A reader that starts behind a message id, or at earliest or latest.

        At the id with `start_message_id_inclusive`.
        """
        arguments = options.for_sync_client()
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
