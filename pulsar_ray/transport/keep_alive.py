"""Pings an actor from time to time, and notices when it is silent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from pulsar_ray.errors import PulsarException, SessionLost
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.session.requests import Ping, encode_request
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import Cluster

PING_INTERVAL_S = 2.0
SILENCE_S = 5.0


class KeepAlive:
    """Watches the connection that a link has now: `carrier()`.

    Earlier ones are left alone.

    Always on the I/O thread, which goes on while a program blocks its loop. `lost` is called with a
    connection that ended, `unused` when the loop it was for is closed.
    """

    def __init__(
        self,
        cluster: Cluster,
        carrier: Callable[[], Connection | None],
        lost: Callable[[Connection, BaseException], None],
        unused: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._cluster = cluster
        self._carrier = carrier
        self._lost = lost
        self._unused = unused
        self._loop = loop
        self._io = IoThread.get()
        self.heard_at = 0.0
        """When anything came last, by time.monotonic()."""

    def begin(self, connection: Connection, address: str) -> None:
        """Look after a new connection to the actor of this name."""
        self.heard_at = time.monotonic()
        self._look_later(connection, address)

    def _look_later(self, connection: Connection, address: str) -> None:
        self._io.call_later(PING_INTERVAL_S, lambda: self._look(connection, address))

    def _look(self, connection: Connection, address: str) -> None:
        if self._carrier() is not connection:
            return
        if self._loop is not None and self._loop.is_closed():
            # Nobody will read or use this any more; the session must not outlive its program's loop.
            self._unused()
            return
        if time.monotonic() - self.heard_at > SILENCE_S and not connection.has_unread:
            silent = SessionLost(f"{address} has been silent for {SILENCE_S} s")
            threading.Thread(target=self._cluster.report_silent, args=(address,), daemon=True).start()
            self._lost(connection, silent)
            return
        try:
            connection.keep_alive(b"".join(encode_request(Ping(0))))
        except (PulsarException, OSError) as error:
            self._lost(connection, error)
            return
        self._look_later(connection, address)
