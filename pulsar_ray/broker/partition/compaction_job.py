"""One compaction in the process that is there for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pulsar_ray.broker.serving.owner_loop import take_low_priority
from pulsar_ray.errors import BrokerPersistenceError, PulsarException, ServiceUnitNotReady
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, JobState
from pulsar_ray.managed_ledger.compaction.compactor import Compactor

_PAUSE_SHARE = 2.0
"""How long a compaction pauses for each second of work while its partition is busy."""


class _Ended(Exception):
    """Nobody waits for the compaction any more."""


class CompactionJob:
    """Carries out orders in a thread; `begin` and `look` may be repeated."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._lock = threading.Lock()
        self._states: dict[int, JobState] = {}
        self._has_ended = False
        self._is_partition_busy = False

    def begin(self, order: CompactionOrder, is_partition_busy: bool = False) -> None:
        """Begin an order, unless it was begun before."""
        self._is_partition_busy = is_partition_busy
        with self._lock:
            if order.number in self._states or self._has_ended:
                return
            self._states[order.number] = JobState(0.0)
        threading.Thread(target=self._run, args=(order,), name="compaction", daemon=True).start()

    def look(self, number: int, is_partition_busy: bool = False) -> JobState:
        """Say how far the order with this number is.

        It goes on with pauses while its partition is busy. Raises ServiceUnitNotReady for one that this
        process knows nothing of: it began anew meanwhile.
        """
        self._is_partition_busy = is_partition_busy
        state = self._states.get(number)
        if state is None:
            raise ServiceUnitNotReady("the process that compacted has ended, and another one has its place")
        return state

    def end(self) -> None:
        """Go no further."""
        self._has_ended = True

    def _run(self, order: CompactionOrder) -> None:
        # Publishing and reading come first.
        take_low_priority(threading.current_thread())
        worked_s = time.thread_time()

        def watch(share: float) -> None:
            nonlocal worked_s
            if self._has_ended:
                raise _Ended
            self._states[order.number] = JobState(share)
            if self._is_partition_busy:
                # Low priority leaves the processors' caches and memory to nobody.
                self._sleep(_PAUSE_SHARE * (time.thread_time() - worked_s))
            worked_s = time.thread_time()

        error: PulsarException
        try:
            outcome = Compactor(order, watch).run()
            self._states[order.number] = JobState(1.0, outcome)
            return
        except _Ended:
            return
        except PulsarException as caught:
            error = caught
        except OSError as caught:
            error = BrokerPersistenceError(f"compacting {order.topic}: {caught}: see to the disk")
        except Exception as caught:  # noqa: BLE001 - whoever waits is told, whatever it was
            error = ServiceUnitNotReady(f"compacting {order.topic} failed: {caught!r}")
        self._states[order.number] = JobState(0.0, None, error)
