"""Clients that arrive in another process: one there for all handles that were pickled from the same one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pulsar_ray.client.options.client_options import ClientOptions

if TYPE_CHECKING:
    from pulsar_ray.client.client import Client

_CLIENTS: dict[tuple[str, str, str], Client] = {}
_LOCK = threading.Lock()


def reconnected(cls: type[Client], options: ClientOptions, address: str) -> Client:
    """The client of this process for a cluster; it connects when it is first used."""
    key = (address, str(options.data_dir), options.transport)
    with _LOCK:
        client = _CLIENTS.get(key)
        if client is None or not client.is_usable:
            client = cls(address, **options.for_another_process())
            _CLIENTS[key] = client
        return client
