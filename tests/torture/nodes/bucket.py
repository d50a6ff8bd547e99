"""A shared directory as an object store that fails as those on networks do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from pulsar_ray.errors import RemoteStoreUnavailable
from pulsar_ray.journal.storage.file_store import FileStore
from tests.torture.nodes.plan import AWAY, LATE_WRITES, LOST_WRITES, SLOW

SLOW_S = 5.0
LATE_S = 3.0
SHARE = 0.4
"""Of requests that a fault hits, but for a store that is away."""


class TorturedBucket:
    """Hits the requests of everybody while a fault is there; several may be there at once."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._faults: list[str] = []
        self._calm = 0
        self._late: list[threading.Timer] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Stand before every shared directory; at the end nothing is on its way any more."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("create", "get", "list", "head", "delete"):
                patch.setattr(FileStore, name, self._hit(name, getattr(FileStore, name)))
            yield
            for timer in self._late:
                timer.join()

    def begin(self, fault: str) -> Callable[[], None]:
        """Begin a fault; returns what ends it."""
        with self._lock:
            self._faults.append(fault)
        return lambda: self._end(fault)

    def _end(self, fault: str) -> None:
        with self._lock, suppress(ValueError):
            self._faults.remove(fault)

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Hit nothing meanwhile."""
        with self._lock:
            self._calm += 1
        try:
            yield
        finally:
            with self._lock:
                self._calm -= 1

    def heal(self) -> None:
        """End all faults."""
        with self._lock:
            self._faults.clear()

    def _hit(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def request(store: FileStore, *arguments: Any) -> Any:
            with self._lock:
                faults = () if self._calm else self._faults
                hit = {fault for fault in faults if fault == AWAY or self._rng.random() < SHARE}
                wait_s = self._rng.random()
            if AWAY in hit:
                raise RemoteStoreUnavailable("the object store is away")
            if SLOW in hit:
                time.sleep(wait_s * SLOW_S)
            if LATE_WRITES in hit and name in ("create", "delete"):
                self._do_later(lambda: real(store, *arguments), wait_s * LATE_S)
                raise RemoteStoreUnavailable("no answer, and it is carried out later")
            answer = real(store, *arguments)
            if LOST_WRITES in hit:
                raise RemoteStoreUnavailable("the answer was lost")
            return answer

        return request

    def _do_later(self, request: Callable[[], Any], wait_s: float) -> None:
        timer = threading.Timer(wait_s, request)
        timer.daemon = True
        self._late = [each for each in self._late if each.is_alive()]
        self._late.append(timer)
        timer.start()
