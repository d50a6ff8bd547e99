"""A producer, consumer or reader of an asyncio client.

Unpickled ones connect at their first awaited call.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.asyncio.loop_handles import LoopConsumer, LoopProducer, LoopReader
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.errors import AlreadyClosed, NotConnected


class OpeningClient(Protocol):
    """The client that a producer, consumer or reader belongs to, and is opened by."""

    @property
    def operation_timeout_s(self) -> float: ...

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, if the client lives on it. Raises NotAllowedError, AlreadyClosed."""

    async def open_producer(self, options: ProducerOptions) -> LoopProducer: ...

    async def open_consumer(self, options: ConsumerOptions) -> LoopConsumer: ...

    async def open_reader(self, arguments: dict[str, Any]) -> LoopReader: ...


class _Handle(Protocol):
    def topic(self) -> str: ...

    def is_connected(self) -> bool: ...

    def close(self) -> None: ...


T = TypeVar("T", bound=_Handle)
S = TypeVar("S", bound="LazyHandle[Any]")


class LazyHandle(Generic[T]):
    """`_inner` is the synchronous client's object, once it is open; `_what` it is, for errors."""

    _what: ClassVar[str]

    def __init__(self, client: OpeningClient) -> None:
        self._client = client
        self._inner: T | None = None
        self._unopened = Ending(self._what)
        self._opening: asyncio.Lock | None = None

    async def _open(self) -> T:
        raise NotImplementedError

    async def close(self) -> None:
        """A second call raises AlreadyClosed."""
        self._client.loop()
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if (inner := self._inner) is None:
                # There is nothing to end, and never will be.
                self._unopened.close(lambda: None)
                return
        await in_thread(inner.close)

    def _opened(self, inner: T) -> None:
        self._inner = inner

    async def _open_first(self) -> T:
        self._client.loop()
        if self._inner is None:
            self._opening = self._opening or asyncio.Lock()
            async with self._opening:
                if self._inner is None:
                    self._unopened.check()
                    self._opened(await self._open())
        assert self._inner is not None
        return self._inner

    def _open_already(self) -> T:
        if self._inner is None:
            raise NotConnected("it was unpickled and connects at its first awaited call: make that first")
        return self._inner

    def topic(self) -> str:
        """The full name of the topic."""
        return self._open_already().topic()

    def is_connected(self) -> bool:
        """True while every partition's connection stands."""
        return self._inner is not None and self._inner.is_connected()

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(AlreadyClosed):
            await self.close()
