"""Shares one client per loop between unpickled handles of the same cluster."""

from __future__ import annotations

import asyncio
import threading

from pulsar_ray.asyncio.loop_handles import LoopClient
from pulsar_ray.client.options.client_options import ClientOptions

_Key = tuple[str, str, str]
_lock = threading.Lock()
_clients: dict[tuple[_Key, asyncio.AbstractEventLoop], LoopClient] = {}


def shared_client(options: ClientOptions, address: str, loop: asyncio.AbstractEventLoop) -> LoopClient:
    """The client of this loop; made by the first who asks."""
    key = ((address, str(options.data_dir), options.transport), loop)
    with _lock:
        for known in list(_clients):
            if known[1].is_closed():
                _clients.pop(known)
        client = _clients.get(key)
        if client is None or not client.is_usable:
            client = _clients[key] = LoopClient(address, **options.for_another_process())
            client.live_on(loop)
        return client
