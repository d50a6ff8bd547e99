"""Ties a client to its cluster.

The tie is made at the first use, and refused after the end and in forked children.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.errors import AlreadyClosed, ForkedClient, PulsarException
from pulsar_ray.lane.waiting import ensure_may_wait
from pulsar_ray.launch.connect import Connected, connect
from pulsar_ray.transport.cluster import Cluster


class ClusterConnection:
    """Connects at the first use. Thread-safe.

    `connected` is a cluster that is there already; no other one is then looked for.
    """

    def __init__(self, options: ClientOptions, connected: Connected | None = None) -> None:
        self._options = options
        self._connected = connected
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._when_gone: list[Callable[[PulsarException], None]] = []
        self._is_gone = False
        if connected is not None:
            connected.cluster.when_gone(self._gone)
        self.is_closed = False

    def forked(self) -> None:
        """Take a new lock in a forked child, where another thread's would stay locked."""
        self._lock = threading.Lock()

    @property
    def is_usable(self) -> bool:
        """Whether the client is open, of this process, and its broker not gone.

        Looks whether this process has left the broker's Ray, and ends the client then, which runs the
        application's callbacks: call without a lock. The broker counts as there while nobody knows better.
        """
        if self.is_closed or self._is_gone or self._pid != os.getpid():
            return False
        connected = self._connected
        return connected is None or connected.cluster.is_reachable

    @property
    def is_connected(self) -> bool:
        """Whether it has a cluster, which it leaves by `release`."""
        return self._connected is not None

    def when_gone(self, notify: Callable[[PulsarException], None]) -> None:
        """Call `notify` once the broker is gone for good."""
        self._when_gone.append(notify)

    def _gone(self, error: PulsarException) -> None:
        self._is_gone = True
        for notify in self._when_gone:
            notify(error)

    @property
    def cluster(self) -> Cluster:
        """The cluster; connects at the first use.

        Raises AlreadyClosed, ForkedClient, or what connecting raises; NotAllowedError in a thread that must
        not wait, as a call of the cluster would.
        """
        ensure_may_wait("what asks the broker")
        if self.is_closed:
            raise AlreadyClosed("the client is closed")
        if os.getpid() != self._pid:
            raise ForkedClient
        with self._lock:
            if self._connected is None:
                options = self._options
                self._connected = connect(
                    options.service_url,
                    data_dir=options.data_dir,
                    config_file=options.config_file,
                    settings=options.settings,
                )
                self._connected.cluster.when_gone(self._gone)
            return self._connected.cluster

    @property
    def address(self) -> str:
        """The address that finds the same cluster from another process."""
        return self._connected.address if self._connected is not None else self._options.service_url

    def close(self) -> None:
        """Refuse `cluster` from now on; calls under way may use it until `release`."""
        self.is_closed = True

    def release(self, wait_s: float = 0.0) -> None:
        """Release the cluster, which others of this process may still use.

        Threads of this client that call the cluster give up, and are waited for so long.
        """
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is None:
            return
        if self._pid == os.getpid():
            connected.cluster.end_calls(wait_s)
        self._when_gone.clear()
        connected.release()
