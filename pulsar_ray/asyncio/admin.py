"""The administrator's entry for asyncio: the calls of `pulsar_ray.Admin`, awaited."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from pulsar_ray.admin.admin import Admin as BlockingAdmin
from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.errors import AlreadyClosed
from pulsar_ray.transport.cluster import Cluster

Awaited = Callable[..., Coroutine[Any, Any, Any]]


class AwaitedCalls:
    """Offers the methods of an object as coroutines, which run on threads.

    Its parts that are no methods, `policies` for instance, are offered in the same way. A call whose task is
    cancelled goes on to its end, as one over a network would.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self._calls).__name__} has no {name} for others")
        found = getattr(self._calls, name)
        return awaited(found) if callable(found) else AwaitedCalls(found)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._calls) if not name.startswith("_")]


def awaited(method: Callable[..., Any]) -> Awaited:
    """Return a coroutine function that calls a blocking method on a thread."""

    @functools.wraps(method)
    async def call(*arguments: Any, **named: Any) -> Any:
        return await in_thread(functools.partial(method, *arguments, **named))

    return call


class Admin:
    """Administers a broker from an event loop: `await admin.topics.create_topic("orders")`.

    `service_url` and keywords, areas, methods, arguments and errors are those of `pulsar_ray.Admin`; each
    call is awaited. It may be used on any loop.
    """

    topics: AwaitedCalls
    namespaces: AwaitedCalls
    tenants: AwaitedCalls
    brokers: AwaitedCalls
    stores: AwaitedCalls
    schemas: AwaitedCalls

    def __init__(self, service_url: str = "auto", **arguments: Any) -> None:
        self._use(BlockingAdmin(service_url, **arguments))

    def _use(self, admin: BlockingAdmin) -> None:
        self._admin = admin
        self.topics = AwaitedCalls(admin.topics)
        self.namespaces = AwaitedCalls(admin.namespaces)
        self.tenants = AwaitedCalls(admin.tenants)
        self.brokers = AwaitedCalls(admin.brokers)
        self.stores = AwaitedCalls(admin.stores)
        self.schemas = AwaitedCalls(admin.schemas)

    @classmethod
    def _on(cls, cluster: Cluster, **arguments: Any) -> Admin:
        """An admin of a cluster that is there already (`pulsar_ray.testing`); it finds no other one."""
        admin = cls.__new__(cls)
        admin._use(BlockingAdmin._on(cluster, **arguments))  # noqa: SLF001 - as `_on`
        return admin

    async def broker(self) -> dict[str, Any]:
        """Return the controller's description of the broker, as `pulsar_ray.Admin.broker`."""
        return await in_thread(self._admin.broker)

    async def health(self) -> Any:
        """Return what is wrong with the broker, as `pulsar_ray.Admin.health`."""
        return await in_thread(self._admin.health)

    async def close(self) -> None:
        """Disconnect. A second call raises AlreadyClosed."""
        await in_thread(self._admin.close)

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except AlreadyClosed:
            return
