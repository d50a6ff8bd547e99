"""This process's stay on the Ray of an embedded broker (ADR 0025).

The broker stays as long as this process is on its Ray, whether or not a client is open, because Ray ends a
process whose cluster is gone. The other way round, once the broker has gone all the same, every handle is
told, and this process leaves the Ray before that can happen.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from pathlib import Path

from pulsar_ray.errors import BrokerGone, ConnectError, PulsarException
from pulsar_ray.launch.broker_token import give_token_back
from pulsar_ray.launch.embedded import ClientMark, EmbeddedRecord, read_record
from pulsar_ray.launch.rays.joined_ray import leave_ray
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.this_ray import is_driver, ray_job

LOOK_INTERVAL_S = 0.5
LEAVE_TIMEOUT_S = 90.0


class RayStay:
    """One stay on a broker's Ray, from joining until either side leaves."""

    def __init__(self, data_dir: Path, record: EmbeddedRecord, mark: ClientMark) -> None:
        self._data_dir = data_dir
        self._record = record
        self._mark = mark
        self._job = ray_job()
        self._clusters: weakref.WeakSet[RayCluster] = weakref.WeakSet()
        self._ending = threading.Lock()
        self._is_over = False
        threading.Thread(target=self._look, name="pulsar-ray-stay", daemon=True).start()

    def is_of(self, record: EmbeddedRecord) -> bool:
        """Whether it is a stay with this broker that goes on."""
        return self._record == record and not self._is_over and self._is_there()

    def add(self, cluster: RayCluster) -> None:
        """Tell this cluster when the stay is over."""
        self._clusters.add(cluster)

    def is_served(self) -> bool:
        """Whether the broker runs, and is not about to end."""
        return read_record(self._data_dir) == self._record

    def end_unless_served(self) -> None:
        """End the stay if it is over.

        All clusters are notified, and the Ray of a broker that has gone is left.

        Raises ConnectError if this process cannot leave.
        """
        with self._ending:
            if not self._is_there():
                self._tell(BrokerGone("this process has left the Ray of this client: make a new Client"))
            elif not self.is_served():
                record = self._record
                self._tell(
                    BrokerGone(
                        f"the embedded broker of {self._data_dir}, process {record.pid}, has ended: make a "
                        "new Client, which starts one again; what has no receipt may be stored or not"
                    )
                )
                self._leave()

    def in_child(self) -> None:
        """End the stay in a forked child, which is on no Ray."""
        self._is_over = True

    def _is_there(self) -> bool:
        return ray_job() == self._job

    def _look(self) -> None:
        while self._is_there():
            time.sleep(LOOK_INTERVAL_S)
            with contextlib.suppress(ConnectError):
                self.end_unless_served()
        self.end_unless_served()

    def _tell(self, error: PulsarException) -> None:
        if not self._is_over:
            self._is_over = True
            self._mark.release()
            for cluster in list(self._clusters):
                cluster.gone(error)

    def _leave(self) -> None:
        if leave_ray(LEAVE_TIMEOUT_S):
            give_token_back()
        else:
            raise ConnectError(
                f"the embedded broker of {self._data_dir} has ended, and this process cannot leave its Ray: "
                "a thread of the program is inside Ray"
            )


class _Stays:
    """The present stay of this process; one at a time, as of one Ray."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: RayStay | None = None

    def in_child(self) -> None:
        """Begin anew in a forked child, where another thread's lock would stay locked."""
        if self._current is not None:
            self._current.in_child()
        self.__init__()  # type: ignore[misc]

    def begin(
        self, data_dir: Path, record: EmbeddedRecord, mark: ClientMark, cluster: RayCluster
    ) -> ClientMark | None:
        """Begin this process's stay on the Ray of a broker.

        Returns the mark if it is to be released with its client.
        """
        if not is_driver():
            # A worker comes and goes with its Ray, and stays there without work too.
            return mark
        with self._lock:
            if self._current is not None and self._current.is_of(record):
                mark.release()
            else:
                self._current = RayStay(data_dir, record, mark)
            self._current.add(cluster)
        return None

    def settle(self) -> None:
        """Leave a Ray whose broker has gone, before anything is asked of Ray."""
        with self._lock:
            if self._current is not None:
                self._current.end_unless_served()


STAYS = _Stays()
os.register_at_fork(after_in_child=STAYS.in_child)
