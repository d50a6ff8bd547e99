"""Attaches parked consumers of a client again, once their partitions are in use."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pulsar_ray.errors import AlreadyClosed, ForkedClient, PulsarException
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import Cluster

logger = logging.getLogger(__name__)

POLL_S = 20.0
"""How long the controller keeps one call waiting."""
GATHER_S = 0.1
"""How long links that are parked one after the other gather for one call."""
OUT_OF_TOUCH_S = 20.0
"""After so long without a call that waits all links attach.

Less than the controller keeps a topic awake whose parked clients it has signalled.
"""
LATE_S = 5.0
"""An answer that is later than this has waited for a process that was stopped."""
PAUSE_S = 1.0
"""How long to wait before the next call after one that failed."""


class WakePoll:
    """Keeps one call of the controller waiting while any link is parked. Thread-safe.

    The call has a thread of its own. Its answer are the dispatchers whose partitions are in use by then:
    nothing is missed between two calls, or while the controller restarts. By `client_id` the controller knows
    the client's newest call, and answers the one before.
    """

    def __init__(self, cluster: Callable[[], Cluster], client_id: str) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._parked: set[ActorLink] = set()
        self._is_due = False
        self._calls = 0
        self._waiting = 0

    def forked(self) -> None:
        """Wait for nothing in a forked child: thread and links are the parent's."""
        self._start_empty()

    def add(self, link: ActorLink) -> None:
        """Wait for a parked link, until it attaches or has no endpoints.

        To be called once more when it has lost its last endpoint.
        """
        with self._lock:
            self._parked.add(link)
            if self._is_due:
                return
            self._is_due = True
        IoThread.get().call_later(GATHER_S, self._start_call)

    def _start_call(self) -> None:
        """Start a call of all links in place of the one that waits."""
        with self._lock:
            self._is_due = False
            self._calls += 1
            number = self._calls
        threading.Thread(target=self._run, args=(number,), name="pulsar-ray-wake", daemon=True).start()

    def _run(self, number: int) -> None:
        in_touch_s = time.monotonic()
        self._end_call_without_links(number)
        while parked := self._still_parked(number):
            woken: list[str] | None = None
            began_s = time.monotonic()
            # Before and behind a call that waits topics may wake, and go to sleep again.
            is_out_of_touch = began_s - in_touch_s > OUT_OF_TOUCH_S
            try:
                consumers = {address: link.awaited_consumers() for address, link in parked.items()}
                woken = self._ask(number, consumers, 0.0 if is_out_of_touch else POLL_S)
            except (AlreadyClosed, ForkedClient):
                return
            except PulsarException as error:
                logger.debug("waiting for sleeping topics failed: %s", error)
                time.sleep(PAUSE_S)
            now_s = time.monotonic()
            if woken is not None:
                if is_out_of_touch or now_s - began_s > POLL_S + LATE_S:
                    woken = list(parked)
                in_touch_s = now_s
            for address in woken or ():
                parked[address].wake()

    def _ask(
        self, number: int, consumers: Mapping[str, Sequence[tuple[int, bool]]], timeout_s: float
    ) -> list[str]:
        with self._lock:
            if number != self._calls:
                return []  # a newer call may have been made already
            self._waiting += 1
        try:
            return self._cluster().await_wake(self._client_id, consumers, timeout_s)
        finally:
            with self._lock:
                self._waiting -= 1

    def _end_call_without_links(self, number: int) -> None:
        """End a call that waits for links of which none is left.

        Their topics would count as in use until its timeout.
        """
        if self._still_parked(number):
            return
        # Repeated: the call that waits may just be on its way, and come behind the one that is to end it.
        while self._waits_in_vain(number):
            with contextlib.suppress(PulsarException):
                self._ask(number, {}, 0.0)
            time.sleep(GATHER_S)

    def _waits_in_vain(self, number: int) -> bool:
        with self._lock:
            return number == self._calls and self._waiting > 0

    def _still_parked(self, number: int) -> dict[str, ActorLink]:
        """The links to wait for, by address; none if a newer call waits."""
        with self._lock:
            if number != self._calls:
                return {}
            self._parked = {link for link in self._parked if link.is_parked and link.has_endpoints}
            return {link.address: link for link in self._parked}
