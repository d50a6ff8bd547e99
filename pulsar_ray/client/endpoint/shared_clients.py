"""The clients of one process that unpickled handles share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pulsar_ray.client.options.client_options import ClientOptions


class SharableClient(Protocol):
    """A client of any kind."""

    @property
    def is_usable(self) -> bool:
        """Whether it is open, of this process, and its broker not known to be gone."""


C = TypeVar("C", bound=SharableClient)


class SharedClients(Generic[C]):
    """Keeps one client per cluster and transport. Thread-safe.

    All handles that were pickled from clients of the same cluster use the same client where they arrive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str, str], C] = {}

    def find(self, options: ClientOptions, address: str, connect: Callable[[], C]) -> C:
        """Find the client of a cluster.

        `connect` makes a missing one, and another in place of one that has ended.
        """
        key = (address, str(options.data_dir), options.transport)
        known = self._clients.get(key)
        # Without the lock: what has left its cluster ends now, and tells the application.
        if known is not None and known.is_usable:
            return known
        with self._lock:
            client = self._clients.get(key)
            if client is None or client is known:
                client = self._clients[key] = connect()
            return client
