"""Keep this process on the Ray of its cluster, though that is started anew.

Ray ties a program to the raylet of its node when it joins. Once that raylet has ended (`ray stop`, `ray up`,
a head that came back without what it knew) no call of the program is answered any more, also where a new
Ray runs at the same address. So the program leaves the Ray that has gone and joins the one that follows, and
its clients go on there as behind any lost carrier. Tasks and actors end with their raylet, and need none of
this.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable

from pulsar_ray.errors import BrokerGone, ConnectError, NotConnected, PulsarException, UnsupportedVersionError
from pulsar_ray.launch.rays.joined_ray import leave_ray
from pulsar_ray.transport.ray_calls import RAY_CALLS
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.this_ray import is_driver, ray_job, raylet_socket

LOOK_INTERVAL_S = 1.0
LEAVE_TIMEOUT_S = 30.0
_JOIN_PAUSE_S = 2.0
_log = logging.getLogger(__name__)


class RayletLife:
    """A connection to a raylet, which shows the end of that process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection = self._connected()

    def _connected(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return None
        return connection

    def has_ended(self, wait_s: float) -> bool:
        """Wait so long for the raylet's end.

        One that closes the connection and takes another lives.
        """
        if self._connection is None:
            return True
        self._connection.settimeout(wait_s)
        try:
            is_open = bool(self._connection.recv(1))
        except TimeoutError:
            return False
        except OSError:
            is_open = False
        if is_open:
            return False
        self._connection.close()
        self._connection = self._connected()
        return self._connection is None

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._connection.close()


class ClusterStay:
    """This process stays at an address, on all Rays that follow one another there."""

    def __init__(self, address: str, join: Callable[[], None] | None) -> None:
        """`join` joins the Ray at the address, or raises ConnectError, or UnsupportedVersionError for good.

        None where the program joined Ray by itself: it has to do so again.
        """
        self._address = address
        self._join = join
        self._job = ray_job()
        self._clusters: weakref.WeakSet[RayCluster] = weakref.WeakSet()
        self._is_over = False
        threading.Thread(target=self._look, name="pulsar-ray-cluster", daemon=True).start()

    def goes_on(self) -> bool:
        """Whether this process is on that Ray, or about to join the next one."""
        return not self._is_over and (ray_job() == self._job or RAY_CALLS.is_ending)

    def add(self, cluster: RayCluster) -> None:
        """Take a cluster along to the next Ray."""
        self._clusters.add(cluster)

    def in_child(self) -> None:
        """End the stay in a forked child, which is on no Ray."""
        self._is_over = True

    def _look(self) -> None:
        raylet = RayletLife(raylet_socket())
        while ray_job() == self._job:
            if not raylet.has_ended(LOOK_INTERVAL_S) or ray_job() != self._job:
                continue  # a program that leaves a Ray of its own ends that
            raylet.close()
            if self._join is None:
                self._tell(
                    BrokerGone(
                        f"the Ray of this node, of the cluster at {self._address}, has ended, and this "
                        "program joined it by itself: once Ray runs here again call ray.shutdown() and "
                        "ray.init(), and make a new Client. A program that leaves joining to Client() goes "
                        "on by itself"
                    )
                )
                return
            if not self._move():
                return
            raylet = RayletLife(raylet_socket())
        raylet.close()
        self._is_over = True

    def _move(self) -> bool:
        """Leave the Ray that has ended, and join the next one.

        False if that is not to be.
        """
        told = f"the Ray of this node has ended; waiting for the next one at {self._address}"
        _log.warning("%s", told)
        while not leave_ray(LEAVE_TIMEOUT_S, NotConnected(told), self._joined_next):
            if RAY_CALLS.has_ended or ray_job() != self._job:
                return False
            _log.warning("still on a Ray that has ended: a thread of the program is inside Ray")
        return not self._is_over

    def _joined_next(self) -> None:
        """Join the next Ray, however long that takes; nobody calls Ray meanwhile."""
        for cluster in list(self._clusters):
            cluster.left()
        assert self._join is not None
        refused = ""
        while not RAY_CALLS.has_ended:
            try:
                self._join()
            except UnsupportedVersionError as error:
                self._tell(BrokerGone(error.text))
                return
            except ConnectError as error:
                if ray_job():  # the program itself has joined another one meanwhile
                    self._tell(BrokerGone(f"{error}: make a new Client"))
                    return
                if str(error) != refused:
                    refused = str(error)
                    _log.info("%s", refused)
                time.sleep(_JOIN_PAUSE_S)
                continue
            self._job = ray_job()
            for cluster in list(self._clusters):
                cluster.joined()
            _log.warning("joined the next Ray at %s", self._address)
            return

    def _tell(self, error: PulsarException) -> None:
        self._is_over = True
        for cluster in list(self._clusters):
            cluster.gone(error)


class _ClusterStays:
    """The present stay of this process; one at a time, as of one Ray."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: ClusterStay | None = None
        self._joined_job = ""

    def in_child(self) -> None:
        """Begin anew in a forked child, where another thread's lock would stay locked."""
        if self._current is not None:
            self._current.in_child()
        self.__init__()  # type: ignore[misc]

    def joined(self) -> None:
        """Remember that a client joined this process's Ray, and not the program."""
        self._joined_job = ray_job()

    def begin(self, address: str, join: Callable[[], None], cluster: RayCluster) -> None:
        """Take a cluster along through all Rays that follow one another at an address."""
        if not is_driver():
            return
        with self._lock:
            if self._current is None or not self._current.goes_on():
                is_ours = ray_job() == self._joined_job
                self._current = ClusterStay(address, join if is_ours else None)
            self._current.add(cluster)


CLUSTER_STAYS = _ClusterStays()
os.register_at_fork(after_in_child=CLUSTER_STAYS.in_child)
