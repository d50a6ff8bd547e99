"""One compaction in the process that is there for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pulsar_ray.broker.serving.owner_loop import take_low_priority
from pulsar_ray.errors import BrokerPersistenceError, PulsarException, ServiceUnitNotReady
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, JobState
from pulsar_ray.managed_ledger.compaction.compactor import Compactor

_PAUSE_SHARE = 4.0
"""How long a compaction pauses for each second of work while its partition is busy.

It takes a fifth of a processor then.
"""


class _Ended(Exception):
    """Nobody waits for the compaction any more."""


class _Running:
    """Ties an order to its thread, and to how far it is."""

    def __init__(self, order: CompactionOrder) -> None:
        self.order = order
        self.state = JobState(0.0)
        self.thread: threading.Thread


class CompactionJob:
    """Carries out one order at a time in a thread.

    `begin` and `look` may be repeated. The order of a partition that has started again ends the one before:
    that may have the same number, and its files count as leftovers by now.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._has_ended = False
        self._is_partition_busy = False

    def begin(self, order: CompactionOrder, is_partition_busy: bool = False) -> None:
        """Begin an order, unless it, or a later one, was begun before."""
        self._is_partition_busy = is_partition_busy
        with self._lock:
            former = self._running
            if self._has_ended or (former is not None and order.key <= former.order.key):
                return
            running = self._running = _Running(order)
            running.thread = threading.Thread(
                target=self._carry_out, args=(running, former), name="compaction", daemon=True
            )
            running.thread.start()

    def look(self, key: tuple[int, int], is_partition_busy: bool = False) -> JobState:
        """Say how far the order with this key is.

        It goes on with pauses while its partition is busy. Raises ServiceUnitNotReady for one that this
        process does not carry out: it began anew meanwhile, or got a later one.
        """
        running = self._running
        if running is None or running.order.key != tuple(key):
            raise ServiceUnitNotReady("the process that compacted has ended, and another one has its place")
        self._is_partition_busy = is_partition_busy
        return running.state

    def end(self) -> None:
        """Go no further."""
        self._has_ended = True

    def _carry_out(self, running: _Running, former: _Running | None) -> None:
        if former is not None:
            # That removes what was written for the former order.
            former.thread.join()
        # Publishing and reading come first.
        take_low_priority(threading.current_thread())
        order = running.order
        worked_s = time.thread_time()

        def watch(share: float) -> None:
            nonlocal worked_s
            if self._has_ended or self._running is not running:
                raise _Ended
            running.state = JobState(share)
            if self._is_partition_busy:
                # Low priority leaves the processors' caches and memory to nobody.
                self._sleep(_PAUSE_SHARE * (time.thread_time() - worked_s))
            worked_s = time.thread_time()

        error: PulsarException
        try:
            running.state = JobState(1.0, Compactor(order, watch).run())
            return
        except _Ended:
            return
        except PulsarException as caught:
            error = caught
        except OSError as caught:
            error = BrokerPersistenceError(f"compacting {order.topic}: {caught}: see to the disk")
        except Exception as caught:  # noqa: BLE001 - whoever waits is told, whatever it was
            error = ServiceUnitNotReady(f"compacting {order.topic} failed: {caught!r}")
        running.state = JobState(0.0, None, error)
