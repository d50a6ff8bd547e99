"""A consumer in each form that programs have it in, behind calls that wait."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from pulsar_ray.asyncio import client as asyncio_client
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.transport.actor_link import ActorLink
from tests.conformance.broker import Broker
from tests.conformance.test_lifecycle import pickled, ray_dumps

FORMS = ("threads", "threads, pickled", "asyncio", "asyncio, pickled")
CALL_S = 60.0
T = TypeVar("T")


class LoopThread:
    """A program's event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, call: Callable[[], Awaitable[T] | T]) -> T:
        """Call a function on the loop, and await its result if it is to be awaited."""

        async def on_loop() -> T:
            result = call()
            if inspect.isawaitable(result):
                return await result
            return result

        return asyncio.run_coroutine_threadsafe(on_loop(), self.loop).result(CALL_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CALL_S)
        self.loop.close()


class FormedConsumer:
    """Has every method of its consumer; those that are to be awaited are."""

    def __init__(self, consumer: Any, loop: LoopThread | None) -> None:
        self._consumer = consumer
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._consumer, name)
        loop = self._loop
        return method if loop is None else lambda *given: loop.run(lambda: method(*given))

    @property
    def core(self) -> ConsumerCore:
        """Of the open consumer."""
        core: ConsumerCore = (self._consumer if self._loop is None else self._consumer._inner).core
        return core

    @property
    def link(self) -> ActorLink:
        """To its only dispatcher."""
        return self.core.partitions.all[0].link


class Forms:
    """Makes consumers of one form."""

    def __init__(self, broker: Broker, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        kind, _, travels = form.partition(", ")
        self._broker = broker
        self._travels = bool(travels)
        self._monkeypatch = monkeypatch
        self._loop = LoopThread() if kind == "asyncio" else None
        self._client: Any = broker.client() if self._loop is None else broker.asyncio_client()
        self._other: Any = None
        if self._loop is not None and self._travels:
            self._other = broker.asyncio_client()

    def subscribe(self, topic: str, name: str, *given: Any, **options: Any) -> FormedConsumer:
        """A consumer, or what a task makes of one that it was given."""
        loop = self._loop
        if loop is None:
            consumer = self._client.subscribe(topic, name, *given, **options)
            if self._travels:
                consumer.close()
                consumer = pickled(self._broker.client(), consumer, self._monkeypatch)
            return FormedConsumer(consumer, None)
        consumer = loop.run(lambda: self._client.subscribe(topic, name, *given, **options))
        if self._travels:
            loop.run(consumer.close)
            inner = self._other._inner

            def other_process(*_: object) -> object:
                inner.live_on(asyncio.get_running_loop())
                return inner

            self._monkeypatch.setattr(asyncio_client, "shared_client", other_process)
            consumer = loop.run(lambda: pickle.loads(ray_dumps(consumer)))
        return FormedConsumer(consumer, loop)

    def close(self) -> None:
        if self._loop is not None:
            for client in (self._client, self._other):
                if client is not None:
                    self._loop.run(client.close)
            self._loop.close()
