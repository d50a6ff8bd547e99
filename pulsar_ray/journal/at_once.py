"""Carries out requests one after the other, without a life of a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pulsar_ray.errors import RemoteStoreRefused, RemoteStoreUnavailable
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.journal.requests import UNKNOWN, Create, Delete, Get, ListKeys, Task, Wait
from pulsar_ray.journal.storage.object_store import ObjectStore, carry_out, listed

TRIES = 5
PAUSE_S = 1.0
T = TypeVar("T")


class Reader:
    """Reads objects, and counts them; a request that is not answered is repeated some times.

    Methods may be called from several threads. They raise RemoteStoreUnavailable after the last try, and
    RemoteStoreRefused at once.
    """

    def __init__(self, store: ObjectStore, progress: Callable[[int], None] = lambda _: None) -> None:
        self._store = store
        self._progress = progress
        self._lock = threading.Lock()
        self.objects = self.bytes = 0

    def get(self, key: str) -> Buffer | None:
        """Return an object's bytes, None if there is none."""
        stored = _patiently(lambda: self._store.get(key))
        if stored is not None:
            with self._lock:
                self.objects += 1
                self.bytes += len(stored)
                self._progress(len(stored))
        return stored

    def list(self, prefix: str) -> list[str]:
        """Return the sorted names that begin with a prefix."""
        return _patiently(lambda: listed(self._store, prefix))

    def run(self, task: Task[T]) -> T:
        """Carry out a task that only reads, and return its result.

        Raises also what the task raises.
        """
        answer: Any = None
        while True:
            try:
                request = task.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = None
            if isinstance(request, Get):
                answer = self.get(request.key)
            elif isinstance(request, ListKeys):
                answer = self.list(request.prefix)
            elif isinstance(request, Wait):
                time.sleep(request.seconds)
            else:
                raise TypeError(f"a task that writes: {request!r}")


def carried_out(task: Task[T], store: ObjectStore, pause: Callable[[float], None]) -> T:
    """Carry out a task that may write, and return its result.

    `pause` waits for some seconds, or raises to give the task up, before a next request too. A refused
    request is made again: rights may be given back. Raises what the task raises.
    """
    answer: Any = None
    while True:
        try:
            request = task.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = None
        if isinstance(request, Wait):
            pause(request.seconds)
        elif isinstance(request, Create | Get | ListKeys | Delete):
            pause(0.0)
            try:
                answer = carry_out(store, request)
            except RemoteStoreRefused:
                answer = UNKNOWN
        else:
            raise TypeError(f"a request of a store's life: {request!r}")


def _patiently(call: Callable[[], T]) -> T:
    for number in range(1, TRIES):
        try:
            return call()
        except RemoteStoreUnavailable:
            time.sleep(number * PAUSE_S)
    return call()
